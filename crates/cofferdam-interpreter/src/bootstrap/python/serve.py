# Runs the one request. It arrives on standard input. The rest of the stream is the standard input of the code.
request = next_request()
try:
    path = prepare(request)
except OSError as error:
    send(1, f"-{error.errno} {'directory' if error.filename == request[2] else 'store'}\n")
    os._exit(1)
os.write(1, b"+")
code = request[5] if request[0] == "code" else None
del request
status = 0
try:
    exec(*load(path, code))
except BaseException as error:
    status = explain(error)
finish(status)
