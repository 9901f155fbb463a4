"""A plugin for mypy that knows actors: switch it on with `plugins = ["skate.mypy_plugin"]`.

Plain annotations cannot say "a handle has the methods of T, and they return references". The plugin says it, wherever
mypy comes across

    @skate.remote class C        C.remote and C.options exist: C gets a metaclass that has them
    @serve.deployment class C    C.bind and C.options exist, in the same way
    C.remote(...)                takes what `C.__init__` takes, and returns an `Actor[C]`
    handle.method                an `ActorMethod` with the parameters of `C.method`, that returns references
    method.remote(...)           where a parameter takes an X, it takes a reference to an X; so do those of functions
    handle.method(...)           is an error, as it is in a program: `.remote` was forgotten; so it is with functions
    C.options(nme=...)           is one, too: there is no such option

Without the plugin mypy knows no `C.remote`, and methods of handles take and return anything. Nothing in Skate imports
this module: mypy does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

try:
    # Before the others: modules of mypy import each other, and few of them can be the first.
    import mypy.types  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "mypy":
        raise
    raise ModuleNotFoundError(
        "skate.mypy_plugin is a plugin for mypy, which is not installed: `pip install mypy`. Programs need neither.",
        name="mypy",
    ) from None

from mypy.argmap import map_actuals_to_formals
from mypy.checker import TypeChecker
from mypy.errorcodes import ATTR_DEFINED, CALL_ARG, OPERATOR
from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import (
    ARG_STAR2,
    CallExpr,
    Context,
    Decorator,
    FuncDef,
    IntExpr,
    MemberExpr,
    NameExpr,
    OverloadedFuncDef,
    RefExpr,
    StrExpr,
    SymbolTableNode,
    TypeInfo,
    Var,
)
from mypy.plugin import (
    AttributeContext,
    CheckerPluginInterface,
    ClassDefContext,
    FunctionContext,
    MethodContext,
    MethodSigContext,
    Plugin,
)
from mypy.typeops import make_simplified_union, type_object_type
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    NoneType,
    Overloaded,
    Parameters,
    ParamSpecType,
    ProperType,
    Type,
    TypeOfAny,
    TypeType,
    TypeVarType,
    UnionType,
    UnpackType,
    get_proper_type,
)
from mypy.typevars import fill_typevars_with_any

ACTOR = "skate._actor.Actor"
ACTOR_CLASS = "skate._actor.ActorClass"
ACTOR_METHOD = "skate._actor.ActorMethod"
METHOD = "skate._actor.method"
OBJECT_REF = "skate._object_ref.ObjectRef"
OBJECT_REF_GENERATOR = "skate._streaming.ObjectRefGenerator"
REMOTE = "skate._remote_function.remote"
REMOTE_FUNCTION = "skate._remote_function.RemoteFunction"
REMOTE_META = "skate._remote_class.RemoteMeta"
DEPLOYMENT = "skate.serve.deployments.deployment"
DEPLOYMENT_META = "skate.serve.deployments.DeploymentMeta"

#: What has the options of tasks, actors and methods for fields.
OPTIONS = "skate._options."
#: Which of them a call takes by name; it takes nothing else by name.
OPTIONS_OF = {
    REMOTE: ("TaskOptions", "ActorOptions"),
    METHOD: ("MethodOptions",),
    f"{REMOTE_FUNCTION}.options": ("TaskOptions",),
    f"{ACTOR_CLASS}.options": ("ActorOptions",),
    f"{ACTOR_METHOD}.options": ("MethodOptions",),
}

#: What a generator is said to return; the last two are as often what a plain function returns.
ITERATORS = ("typing.Generator", "typing.Iterator", "typing.AsyncGenerator", "typing.AsyncIterator")
ITERABLES = (*ITERATORS, "typing.Iterable", "typing.AsyncIterable")
COROUTINES = ("typing.Coroutine", "types.CoroutineType")

#: Metaclasses that ours can stand in for.
PLAIN_METACLASSES = ("builtins.type", "abc.ABCMeta", REMOTE_META)

#: Under this name a class keeps {method: num_returns} in mypy's cache, which has no decorators.
NUM_RETURNS = "skate.num_returns"

#: Of `num_returns`, where it is neither a number nor a word in the source.
UNKNOWN = "unknown"

ANY = AnyType(TypeOfAny.special_form)


def plugin(version: str) -> type[Plugin]:
    """What mypy calls to get the plugin."""
    return SkatePlugin


class SkatePlugin(Plugin):
    def get_class_decorator_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        if fullname == DEPLOYMENT:
            return partial(give_metaclass, DEPLOYMENT_META)
        return make_class_remote if fullname == REMOTE else None

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        owner, _, name = fullname.rpartition(".")
        if owner == ACTOR and not name.startswith("__"):
            return partial(self.attribute_of_handle, name)
        if owner == ACTOR_CLASS and not name.startswith("_"):
            return partial(attribute_of_class, name)
        if owner == REMOTE_META and name == "remote":
            return self.remote_of_class
        if owner == REMOTE_META and name == "options":
            return self.options_of_class
        return None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        if fullname == f"{ACTOR_CLASS}.remote":
            return self.remote_of_actor_class
        if fullname == f"{ACTOR_METHOD}.remote":
            return self.remote_of_method
        if fullname == f"{REMOTE_FUNCTION}.remote":
            return self.remote_of_function
        owner, _, name = fullname.rpartition(".")
        return self.given_references if name == "remote" and self.is_remote_class(owner) else None

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        if fullname == METHOD:
            return self.method_with_options
        if fullname == REMOTE:
            return partial(self.refuse_unknown_options, OPTIONS_OF[REMOTE])
        return refuse_direct_call if self.is_remote_class(fullname) else None

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        if fullname == f"{ACTOR_METHOD}.__call__":
            return partial(refuse_call, "a method of an actor")
        if fullname == f"{REMOTE_FUNCTION}.__call__":
            return partial(refuse_call, "a remote function")
        owner, _, name = fullname.rpartition(".")
        kinds = OPTIONS_OF.get(fullname)
        if kinds is None and name == "options" and self.is_remote_class(owner):
            kinds = ("ActorOptions",)
        return None if kinds is None else partial(self.refuse_unknown_options, kinds)

    def is_remote_class(self, fullname: str) -> bool:
        found = self.lookup_fully_qualified(fullname)
        return found is not None and isinstance(found.node, TypeInfo) and REMOTE in found.node.metadata

    def instance(self, fullname: str, *args: Type) -> Instance:
        """A type of Skate."""
        found = self.lookup_fully_qualified(fullname)
        assert found is not None, fullname
        assert isinstance(found.node, TypeInfo), fullname
        return Instance(found.node, args)

    # --- options ------------------------------------------------------------------------------------------------------

    def refuse_unknown_options(self, kinds: tuple[str, ...], ctx: FunctionContext | MethodContext) -> Type:
        known = {name for kind in kinds for name in self.instance(OPTIONS + kind).type.names if name[:2] != "__"}
        given = ctx.context.arg_names if isinstance(ctx.context, CallExpr) else []
        for name in given:
            if name is not None and name not in known:
                close = difflib.get_close_matches(name, sorted(known), n=1)
                hint = f'; maybe "{close[0]}"?' if close else ""
                ctx.api.fail(f'There is no option "{name}" here{hint}', ctx.context, code=CALL_ARG)
        return ctx.default_return_type

    def method_with_options(self, ctx: FunctionContext) -> Type:
        """At `@skate.method(...)`."""
        remember_num_returns(ctx)
        return self.refuse_unknown_options(OPTIONS_OF[METHOD], ctx)

    # --- classes ------------------------------------------------------------------------------------------------------

    def remote_of_class(self, ctx: AttributeContext) -> Type:
        """The type of `C.remote`."""
        constructor = constructor_of(ctx.type, ctx.api)
        if constructor is None:
            return ctx.default_attr_type
        if REMOTE not in constructor.type_object().metadata:  # it inherits from one that is remote
            return has_no_attribute("remote", constructor, ctx)
        return self.creating(constructor, ctx.api)

    def options_of_class(self, ctx: AttributeContext) -> Type:
        """The type of `C.options`, which returns the class with other options."""
        constructor = constructor_of(ctx.type, ctx.api)
        if constructor is None:
            return ctx.default_attr_type
        if REMOTE not in constructor.type_object().metadata:
            return has_no_attribute("options", constructor, ctx)
        made = fill_typevars_with_any(constructor.type_object())
        function = ctx.api.named_generic_type("builtins.function", [])
        return CallableType([ANY], [ARG_STAR2], ["options"], self.instance(ACTOR_CLASS, made), function, "options")

    def remote_of_actor_class(self, ctx: MethodSigContext) -> FunctionLike:
        """The signature of `remote` of what `skate.remote(C)` or `C.options(...)` returned."""
        made = class_behind(ctx.type)
        constructor = constructor_of(TypeType(made), ctx.api) if made is not None else None
        return ctx.default_signature if constructor is None else self.creating(constructor, ctx.api)

    def creating(self, constructor: FunctionLike, api: CheckerPluginInterface) -> FunctionLike:
        """What makes actors where `constructor` makes instances."""
        items: list[CallableType] = [
            item.copy_modified(
                arg_types=self.or_references(item),
                ret_type=self.instance(ACTOR, item.ret_type),
                fallback=api.named_generic_type("builtins.function", []),
                name=f"remote of {item.name}" if item.name else "remote",
            )
            for item in (each.with_unpacked_kwargs() for each in constructor.items)
        ]
        return items[0] if len(items) == 1 else Overloaded(items)

    # --- handles ------------------------------------------------------------------------------------------------------

    def attribute_of_handle(self, name: str, ctx: AttributeContext) -> Type:
        """The type of `handle.name`."""
        # Of a union mypy asks for each of its items, but tells only of the union.
        items = ctx.type.relevant_items() if isinstance(ctx.type, UnionType) else [ctx.type]
        found = [self.method_of_handle(name, get_proper_type(item), ctx) for item in items]
        return make_simplified_union([item for item in found if item is not None])

    def method_of_handle(self, name: str, handle: ProperType, ctx: AttributeContext) -> Type | None:
        if isinstance(handle, TypeVarType):
            handle = get_proper_type(handle.upper_bound)
        if not isinstance(handle, Instance) or not handle.type.has_base(ACTOR):
            return None
        actor = map_instance_to_supertype(handle, self.instance(ACTOR).type)
        behind = get_proper_type(actor.args[0])
        if isinstance(behind, TypeVarType):
            behind = get_proper_type(behind.upper_bound)
        if not isinstance(behind, Instance) or is_object(behind) or actor.type.get(name):
            return ctx.default_attr_type
        assert isinstance(ctx.api, TypeChecker)
        found = behind.type.get(name)
        if found is not None and not is_method(found):
            why = "only methods of an actor can be reached from outside"
            ctx.api.fail(f'"{name}" of "{behind.type.name}" is no method: {why}', ctx.context, code=ATTR_DEFINED)
            return AnyType(TypeOfAny.from_error)
        function = get_proper_type(ctx.api.expr_checker.analyze_external_member_access(name, behind, ctx.context))
        if isinstance(function, AnyType):
            return function if found is None else ctx.default_attr_type
        if not isinstance(function, CallableType):
            return ctx.default_attr_type
        function = function.with_unpacked_kwargs()
        parameters = Parameters(
            self.or_references(function),
            function.arg_kinds,
            function.arg_names,
            variables=function.variables,
            is_ellipsis_args=function.is_ellipsis_args,
        )
        return self.instance(ACTOR_METHOD, parameters, self.result(function, found, ctx.api))

    def result(self, function: CallableType, found: SymbolTableNode | None, api: CheckerPluginInterface) -> Type:
        """What a call of the method returns to who calls it from outside."""
        value = get_proper_type(function.ret_type)
        yields = None if found is None else is_generator(found)
        num_returns = None if found is None else num_returns_of(found)
        kinds = {True: ITERABLES, False: (), None: ITERATORS}[yields]
        items = value.args[0] if isinstance(value, Instance) and value.type.fullname in kinds else None
        if isinstance(value, Instance) and value.type.fullname in COROUTINES:
            value = get_proper_type(value.args[-1])
        streams = items is not None or (yields and isinstance(value, AnyType))  # not behind @contextmanager
        if num_returns == "streaming" or (num_returns is None and streams):
            return self.instance(OBJECT_REF_GENERATOR, items or ANY)
        if num_returns is None or num_returns == 1:
            return self.instance(OBJECT_REF, value)
        if num_returns == 0:
            return NoneType()
        if num_returns == "dynamic":
            return self.instance(OBJECT_REF, ANY)
        if isinstance(num_returns, int):
            return api.named_generic_type("builtins.list", [self.instance(OBJECT_REF, ANY)])
        return ANY

    # --- arguments ----------------------------------------------------------------------------------------------------

    def or_references(self, function: CallableType | Parameters) -> list[Type]:
        """The types of its parameters, each with that of a reference to it."""
        return [self.or_reference(wanted, function) for wanted in function.arg_types]

    def or_reference(self, wanted: Type, function: CallableType | Parameters) -> Type:
        proper = get_proper_type(wanted)
        if isinstance(proper, (AnyType, ParamSpecType, UnpackType)) or is_object(proper):
            return wanted
        if proper in function.variables:  # mypy cannot infer T from T | ObjectRef[T]: see given_references
            return wanted
        return UnionType.make_union([wanted, self.instance(OBJECT_REF, wanted)])

    def given_references(self, ctx: MethodSigContext) -> CallableType:
        """The signature for one call: a parameter of type T that is given a reference is one of type ObjectRef[T]."""
        signature, call = ctx.default_signature, ctx.context
        if not signature.variables or not isinstance(call, CallExpr):
            return signature
        given = [get_proper_type(ctx.api.get_expression_type(argument)) for argument in call.args]
        actuals = map_actuals_to_formals(
            call.arg_kinds, call.arg_names, signature.arg_kinds, signature.arg_names, lambda index: given[index]
        )
        wanted = list(signature.arg_types)
        for index, parameter in enumerate(signature.arg_types):
            references = [is_reference(given[actual]) for actual in actuals[index]]
            if get_proper_type(parameter) in signature.variables and any(references):
                wanted[index] = self.instance(OBJECT_REF, parameter) if all(references) else ANY
        return signature.copy_modified(arg_types=wanted)

    def remote_of_method(self, ctx: MethodSigContext) -> FunctionLike:
        """The signature of `remote` of a method: with the type variables that are the method's own."""
        parameters = get_proper_type(ctx.type.args[0]) if isinstance(ctx.type, Instance) else None
        if not isinstance(parameters, Parameters) or not parameters.variables:
            return ctx.default_signature
        signature = ctx.default_signature.copy_modified(variables=parameters.variables)
        return self.given_references(ctx._replace(default_signature=signature))

    def remote_of_function(self, ctx: MethodSigContext) -> FunctionLike:
        """The signature of `remote` of a remote function. It takes the place of every overload: they make up for it."""
        if not isinstance(ctx.type, Instance) or ctx.type.type.fullname != REMOTE_FUNCTION:
            return ctx.default_signature
        parameters = get_proper_type(ctx.type.args[0])
        if not isinstance(parameters, Parameters) or parameters.is_ellipsis_args:
            return ctx.default_signature
        signature = ctx.default_signature.copy_modified(
            arg_types=self.or_references(parameters),
            arg_kinds=parameters.arg_kinds,
            arg_names=parameters.arg_names,
            ret_type=ctx.type.args[1],
            variables=parameters.variables,
        )
        return self.given_references(ctx._replace(default_signature=signature))


# --- classes ----------------------------------------------------------------------------------------------------------


def make_class_remote(ctx: ClassDefContext) -> None:
    ctx.cls.info.metadata[REMOTE] = {}
    give_metaclass(REMOTE_META, ctx)


def give_metaclass(name: str, ctx: ClassDefContext) -> None:
    """A class that is decorated gets our metaclass, unless it has one of its own making."""
    info = ctx.cls.info
    ours = ctx.api.lookup_fully_qualified_or_none(name)
    if info.metaclass_type is not None and info.metaclass_type.type.fullname not in PLAIN_METACLASSES:
        info.meta_fallback_to_any = True
    elif ours is not None and isinstance(ours.node, TypeInfo):
        info.declared_metaclass = info.metaclass_type = Instance(ours.node, [])


def refuse_call(what: str, ctx: MethodContext) -> Type:
    callee = ctx.context.callee if isinstance(ctx.context, CallExpr) else None
    name = f'"{callee.name}"' if isinstance(callee, (NameExpr, MemberExpr)) else "This"
    hint = ".remote(...) calls it and returns a reference"
    ctx.api.fail(f"{name} is {what} and cannot be called directly: {hint}", ctx.context, code=OPERATOR)
    return ctx.default_return_type


def refuse_direct_call(ctx: FunctionContext) -> Type:
    callee = ctx.context.callee if isinstance(ctx.context, CallExpr) else None
    if isinstance(callee, RefExpr) and isinstance(callee.node, TypeInfo):  # not `cls()` in a class method
        name = callee.node.name
        hint = f"{name}.remote(...) makes an actor"
        ctx.api.fail(f'"{name}" is a remote class and cannot be called directly: {hint}', ctx.context, code=OPERATOR)
    return ctx.default_return_type


def attribute_of_class(name: str, ctx: AttributeContext) -> Type:
    """The type of `C.name`: what belongs to the class itself can be used through what is made of it."""
    assert isinstance(ctx.api, TypeChecker)
    made = class_behind(ctx.type)
    if made is not None:
        return ctx.api.expr_checker.analyze_external_member_access(name, TypeType(made), ctx.context)
    if isinstance(ctx.type, FunctionLike) and ctx.type.is_type_obj():  # mypy did not find it in the class
        return has_no_attribute(name, ctx.type, ctx)
    return ctx.default_attr_type


def has_no_attribute(name: str, cls: FunctionLike, ctx: AttributeContext) -> Type:
    ctx.api.fail(f'"type[{cls.type_object().name}]" has no attribute "{name}"', ctx.context, code=ATTR_DEFINED)
    return AnyType(TypeOfAny.from_error)


def class_behind(actor_class: ProperType) -> Instance | None:
    """T of an `ActorClass[T]`, if that is a class."""
    if not isinstance(actor_class, Instance) or actor_class.type.fullname != ACTOR_CLASS:
        return None
    made = get_proper_type(actor_class.args[0])
    return made if isinstance(made, Instance) and not is_object(made) else None


def is_reference(type: ProperType) -> bool:
    return isinstance(type, Instance) and type.type.fullname == OBJECT_REF


def is_object(type: ProperType) -> bool:
    return isinstance(type, Instance) and type.type.fullname == "builtins.object"


def constructor_of(cls: ProperType, api: CheckerPluginInterface) -> FunctionLike | None:
    """The signature of a class as it is called."""
    if isinstance(cls, FunctionLike) and cls.is_type_obj():
        return cls
    if not isinstance(cls, TypeType) or not isinstance(cls.item, Instance):
        return None
    assert isinstance(api, TypeChecker)
    found = get_proper_type(type_object_type(cls.item.type, api.named_type))
    if not isinstance(found, FunctionLike):
        return None
    bound = get_proper_type(expand_type_by_instance(found, cls.item))
    assert isinstance(bound, FunctionLike)
    taken = cls.item.type.defn.type_vars
    items = [item.copy_modified(variables=[v for v in item.variables if v not in taken]) for item in bound.items]
    return items[0] if len(items) == 1 else Overloaded(items)


# --- methods ----------------------------------------------------------------------------------------------------------


def is_method(found: SymbolTableNode) -> bool:
    node = found.node
    if isinstance(node, Decorator):
        return not node.var.is_property
    if isinstance(node, Var):  # another name for a method; what is set on `self` is none
        return not found.implicit and isinstance(get_proper_type(node.type), FunctionLike)
    return isinstance(node, FuncDef) or (isinstance(node, OverloadedFuncDef) and not node.is_property)


def is_generator(found: SymbolTableNode) -> bool | None:
    """Whether a method yields; None if its body does not tell."""
    function = found.node.func if isinstance(found.node, Decorator) else found.node
    if not isinstance(function, FuncDef) or function.is_trivial_body or function.abstract_status:
        return None
    return function.is_generator


def remember_num_returns(ctx: FunctionContext) -> None:
    """At `@skate.method(num_returns=...)`: keep it where later runs of mypy find it."""
    assert isinstance(ctx.api, TypeChecker)
    info = ctx.api.scope.active_class()
    for statement in info.defn.defs.body if info is not None else []:
        if isinstance(statement, Decorator) and ctx.context in statement.original_decorators:
            assert info is not None
            info.metadata.setdefault(NUM_RETURNS, {})[statement.name] = num_returns_in(ctx.context)


def num_returns_of(found: SymbolTableNode) -> int | str | None:
    node = found.node
    if not isinstance(node, Decorator):
        return None
    for decorator in node.original_decorators:
        if (value := num_returns_in(decorator)) is not None:
            return value
    kept: int | str | None = node.func.info.metadata.get(NUM_RETURNS, {}).get(node.name)
    return kept


def num_returns_in(decorator: Context) -> int | str | None:
    """2 for `@skate.method(num_returns=2)`, None for what says nothing of it."""
    if not isinstance(decorator, CallExpr) or not isinstance(decorator.callee, RefExpr):
        return None
    if decorator.callee.fullname != METHOD or "num_returns" not in decorator.arg_names:
        return None
    value = decorator.args[decorator.arg_names.index("num_returns")]
    return value.value if isinstance(value, (IntExpr, StrExpr)) else UNKNOWN
