"""Plugins for the forms of an entry."""

from cofferdam_plugin import Plugin, method

plugin = Plugin()


@plugin.method
def of_instance(ctx):
    return "instance"


@method
def of_module(ctx):
    return "module"


async def activate_async(plugin):
    plugin.method(lambda_like)


def lambda_like(ctx):
    return "async"


def create():
    return plugin


def nothing(plugin):
    pass


def fail(plugin):
    raise RuntimeError("no activation")
