def activate(plugin):
    @plugin.method
    def echo(ctx, input):
        return input

    @plugin.method
    def stream(ctx, count, size):
        item = "x" * size
        for _ in range(count):
            yield item
