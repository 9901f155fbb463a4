"""How tasks put questions to their driver, which has no address that a task could call.

    task ──ask──▶ Exchange ──questions──▶ driver ──answers──▶ Exchange ──▶ task

One call of the driver, `turn`, is always under way: it brings answers and waits for questions. Questions and answers
are bytes here, so the process of the actor imports nothing of what they are about.
"""

from __future__ import annotations

import asyncio


class Exchange:
    """An actor between the tasks that ask and the driver that answers. All runs on one event loop, without locks."""

    def __init__(self) -> None:
        self._questions: list[tuple[int, bytes]] = []
        #: By who asked. A task that is run again after its worker died replaces the question of its last attempt.
        self._asking: dict[int, asyncio.Future[bytes]] = {}
        self._came = asyncio.Event()

    async def ask(self, who: int, question: bytes) -> bytes:
        """Task → driver: the answer, when the driver has given it."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asking[who] = answer
        self._questions.append((who, question))
        self._came.set()
        return await answer

    async def turn(self, answers: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Driver → tasks: hand out answers, then wait for questions and return all that have come."""
        for who, answer in answers:
            asking = self._asking.pop(who, None)
            if asking is not None and not asking.done():
                asking.set_result(answer)
        await self._came.wait()
        self._came.clear()
        questions, self._questions = self._questions, []
        return questions
