"""How tasks put questions to their driver, which has no address that a task could call.

    task ──ask──▶ Exchange ──questions──▶ driver ──answers──▶ Exchange ──▶ task

One call of the driver, `turn`, is always under way: it brings answers and waits for questions. Questions and answers
are bytes here, so the process of the actor imports nothing of what they are about.
"""

from __future__ import annotations

import asyncio
import itertools

#: Its number, which the answer carries too, and who asks.
Question = tuple[int, int, bytes]


class Exchange:
    """An actor between the tasks that ask and the driver that answers. All runs on one event loop, without locks."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._questions: list[Question] = []
        #: By the number of the question.
        self._asking: dict[int, asyncio.Future[bytes]] = {}
        #: The question of each task. One that is run again after its worker died replaces that of its last attempt.
        self._last: dict[int, int] = {}
        self._came = asyncio.Event()

    async def ask(self, who: int, question: bytes) -> bytes:
        """Task → driver: the answer, when the driver has given it."""
        number = next(self._numbers)
        self._asking.pop(self._last.get(who, -1), None)
        self._last[who] = number
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asking[number] = answer
        self._questions.append((number, who, question))
        self._came.set()
        try:
            return await answer
        finally:
            if self._last.get(who) == number:
                del self._last[who]

    async def turn(self, answers: list[tuple[int, bytes]]) -> list[Question]:
        """Driver → tasks: hand out answers, by the numbers of the questions; then wait for questions, and return all
        that have come."""
        for number, answer in answers:
            asking = self._asking.pop(number, None)
            if asking is not None and not asking.done():
                asking.set_result(answer)
        await self._came.wait()
        self._came.clear()
        questions, self._questions = self._questions, []
        return questions
