"""Attributes replaced, and put back exactly."""

import pytest

from phalanx.keras_compat.patches import Patches


class Parent:
    def inherited(self):
        return "parent's"

    def own(self):
        return "parent's"


class Child(Parent):
    def own(self):
        return "child's"

    fixed = staticmethod(lambda: "static")
    made = classmethod(lambda cls: cls.__name__)


def replace(**attributes):
    return Patches(lambda: {(Child, name): value for name, value in attributes.items()})


@pytest.fixture(autouse=True)
def _nothing_stays():
    before, parents = dict(vars(Child)), dict(vars(Parent))
    yield
    assert dict(vars(Child)) == before
    assert dict(vars(Parent)) == parents


def test_an_attribute_is_replaced_and_restored():
    with replace(own=lambda self: "new"):
        assert Child().own() == "new"
        assert Parent().own() == "parent's"
    assert Child().own() == "child's"


def test_an_inherited_attribute_is_inherited_again():
    with replace(inherited=lambda self: "new"):
        assert Child().inherited() == "new"
        assert Parent().inherited() == "parent's"
    assert "inherited" not in vars(Child)


def test_an_attribute_that_was_not_there_goes_again():
    with replace(extra=1):
        assert Child.extra == 1
    assert not hasattr(Child, "extra")


def test_static_and_class_methods_stay_what_they_were():
    with replace(fixed=staticmethod(lambda: "new"), made=classmethod(lambda cls: "new")):
        assert (Child.fixed(), Child.made()) == ("new", "new")
    assert (Child.fixed(), Child().made()) == ("static", "Child")


def test_entering_twice_and_leaving_once_keeps_them_on():
    patches = replace(own=lambda self: "new")
    with patches:
        with patches:
            assert Child().own() == "new"
        assert Child().own() == "new"
        assert patches.on
    assert not patches.on


def test_users_may_leave_in_any_order():
    patches = replace(own=lambda self: "new")
    patches.__enter__()
    with patches:
        patches.__exit__()
        assert Child().own() == "new"
    assert Child().own() == "child's"


def test_an_exception_inside_restores_and_continues():
    with pytest.raises(KeyError), replace(own=lambda self: "new"):
        raise KeyError
    assert Child().own() == "child's"


def test_the_replacements_are_made_on_entry_and_only_once():
    made = []

    def make():
        made.append(Child.own)
        return {(Child, "own"): lambda self: "new"}

    patches = Patches(make)
    assert made == []
    with patches, patches:
        assert len(made) == 1
    with patches:
        assert len(made) == 2
    assert made[0] is made[1], "the second time it sees the original again"


def test_two_sets_of_patches_nest():
    with replace(own=lambda self: "outer"):
        with replace(own=lambda self: "inner"):
            assert Child().own() == "inner"
        assert Child().own() == "outer"


def test_replacements_that_cannot_be_made_leave_nothing_on():
    def make():
        raise RuntimeError("upstream changed")

    patches = Patches(make)
    with pytest.raises(RuntimeError, match="upstream changed"):
        patches.__enter__()
    assert not patches.on


def test_an_owner_that_refuses_leaves_nothing_half_done():
    patches = Patches(lambda: {(Child, "own"): lambda self: "new", (int, "own"): None})
    with pytest.raises(TypeError):
        patches.__enter__()
    assert not patches.on
    assert Child().own() == "child's"
