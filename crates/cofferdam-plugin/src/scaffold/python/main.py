"""The plugin {{name}}."""


def activate(plugin):
    @plugin.method
    def hello(ctx, name: str = "world"):
        """Returns a greeting."""
        return {"greeting": f"Hello, {name}!"}
