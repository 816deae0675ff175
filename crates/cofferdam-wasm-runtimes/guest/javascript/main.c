/* Runs JavaScript on a WASI preview 1 host: QuickJS-NG with the runtime of prelude.js.
 *
 *   javascript.wasm FILE [ARGUMENT...]      runs a file (`-`: standard input)
 *   javascript.wasm -e CODE [ARGUMENT...]   runs a piece of code
 *   javascript.wasm --freeze                prepares the memory that later serves requests (requests.h), and exits
 *
 * prelude.js implements the API of scripts. This file implements its access to files, the clock and process exit.
 *
 * Exit status: that of the script; 1 after an uncaught exception or an unhandled rejection; 2 if there is no code to
 * run; 13 if a top-level `await` is pending and no job or timer is left.
 *
 * This file includes the engine instead of linking it, because of the engine's stack limit. The engine disables the
 * limit under WASI. Endless recursion would then end the module with a trap, not with an exception that the script can
 * catch. The limit measures the shadow stack, so the macro makes each function that checks the limit use some of it.
 * javascript.rs puts the name of the engine's own function in parentheses, so that the macro does not replace it.
 */
#define js_check_stack_overflow(rt, size)                                                                              \
    ({                                                                                                                 \
        char stack_use[1024];                                                                                          \
        __asm__ volatile("" : : "r"(stack_use) : "memory");                                                            \
        (js_check_stack_overflow)(rt, size);                                                                           \
    })
#include "quickjs.c"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The size of the shadow stack for scripts. The host must provide a call stack of CALL_STACK_BYTES (recipe.rs): some
 * functions need several bytes of the call stack for each byte of the shadow stack. */
#ifndef STACK_BYTES
#define STACK_BYTES (1536 * 1024)
#endif

extern char **environ;

static const char prelude[] = {
#embed "prelude.js"
    , 0};

/* The runtime object that prelude.js creates. */
static JSValue runtime = JS_UNDEFINED;

/* `process.exit()` in a piece of a session must not end the process. It sets `stopping`, which ends the piece. The
 * session continues with the next piece. */
static bool session, stopping;
static int session_status;

/* The bytes of a string or of a Uint8Array. bytes_free frees those of a string. */
typedef struct {
    const uint8_t *data;
    size_t length;
    const char *string;
} Bytes;

static int bytes_of(JSContext *ctx, JSValueConst value, Bytes *bytes) {
    bytes->string = NULL;
    if (JS_IsString(value)) {
        bytes->string = JS_ToCStringLen(ctx, &bytes->length, value);
        bytes->data = (const uint8_t *)bytes->string;
        return bytes->string ? 0 : -1;
    }
    bytes->data = JS_GetUint8Array(ctx, &bytes->length, value);
    return bytes->data || bytes->length == 0 ? 0 : -1;
}

static void bytes_free(JSContext *ctx, Bytes *bytes) {
    if (bytes->string)
        JS_FreeCString(ctx, bytes->string);
}

/* Returns the negative errno of a failed call to the host. prelude.js turns it into an exception. */
static JSValue errno_result(JSContext *ctx) { return JS_NewInt32(ctx, -errno); }

static int write_all(int fd, const uint8_t *data, size_t length) {
    while (length > 0) {
        ssize_t n = write(fd, data, length);
        if (n < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            return -1;
        }
        data += n;
        length -= n;
    }
    return 0;
}

static JSValue host_write(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    int32_t fd;
    Bytes bytes;
    if (JS_ToInt32(ctx, &fd, argv[0]) || bytes_of(ctx, argv[1], &bytes))
        return JS_EXCEPTION;
    int rc = write_all(fd, bytes.data, bytes.length);
    JSValue result = rc < 0 ? errno_result(ctx) : JS_NewInt32(ctx, 0);
    bytes_free(ctx, &bytes);
    return result;
}

/* Reads an open file to its end and appends a zero byte. Returns NULL on failure: errno is set, or 0 if the allocation
 * failed. */
static uint8_t *read_all(JSContext *ctx, int fd, size_t *length) {
    size_t capacity = 63 * 1024, used = 0;
    uint8_t *data = js_malloc(ctx, capacity + 1);
    while (data) {
        ssize_t n = read(fd, data + used, capacity - used);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0) {
            int error = errno;
            js_free(ctx, data);
            errno = error;
            return NULL;
        }
        if (n == 0) {
            data[used] = 0;
            *length = used;
            return data;
        }
        used += n;
        if (used == capacity) {
            uint8_t *larger = js_realloc(ctx, data, capacity * 2 + 1);
            if (!larger)
                js_free(ctx, data);
            data = larger;
            capacity *= 2;
        }
    }
    errno = 0;
    return NULL;
}

/* readSome(descriptor, Uint8Array) -> the number of bytes that one call to the host reads, 0 at the end */
static JSValue host_read_some(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    int32_t fd;
    size_t length;
    if (JS_ToInt32(ctx, &fd, argv[0]))
        return JS_EXCEPTION;
    uint8_t *data = JS_GetUint8Array(ctx, &length, argv[1]);
    if (!data && length)
        return JS_EXCEPTION;
    ssize_t n;
    do
        n = read(fd, data, length);
    while (n < 0 && (errno == EINTR || errno == EAGAIN));
    return n < 0 ? errno_result(ctx) : JS_NewInt64(ctx, n);
}

/* read(path or descriptor) -> Uint8Array */
static JSValue host_read(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    int32_t fd = -1;
    size_t length;
    if (JS_IsString(argv[0])) {
        const char *path = JS_ToCString(ctx, argv[0]);
        if (!path)
            return JS_EXCEPTION;
        fd = open(path, O_RDONLY);
        JS_FreeCString(ctx, path);
        if (fd < 0)
            return errno_result(ctx);
    } else if (JS_ToInt32(ctx, &fd, argv[0])) {
        return JS_EXCEPTION;
    }
    uint8_t *data = read_all(ctx, fd, &length);
    JSValue result;
    if (data) {
        result = JS_NewUint8ArrayCopy(ctx, data, length);
        js_free(ctx, data);
    } else {
        result = errno ? errno_result(ctx) : JS_EXCEPTION;
    }
    if (JS_IsString(argv[0]))
        close(fd);
    return result;
}

/* writeFile(path, data, append) */
static JSValue host_write_file(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    Bytes bytes;
    const char *path = JS_ToCString(ctx, argv[0]);
    if (!path)
        return JS_EXCEPTION;
    int append = JS_ToBool(ctx, argv[2]);
    int fd = open(path, O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC), 0666);
    JS_FreeCString(ctx, path);
    if (fd < 0)
        return errno_result(ctx);
    if (bytes_of(ctx, argv[1], &bytes)) {
        close(fd);
        return JS_EXCEPTION;
    }
    int rc = write_all(fd, bytes.data, bytes.length);
    JSValue result = rc < 0 ? errno_result(ctx) : JS_NewInt32(ctx, 0);
    bytes_free(ctx, &bytes);
    if (close(fd) < 0 && rc == 0)
        result = errno_result(ctx);
    return result;
}

/* list(path) -> names */
static JSValue host_list(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    const char *path = JS_ToCString(ctx, argv[0]);
    if (!path)
        return JS_EXCEPTION;
    DIR *dir = opendir(path);
    JS_FreeCString(ctx, path);
    if (!dir)
        return errno_result(ctx);
    JSValue names = JS_NewArray(ctx);
    uint32_t count = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            JS_SetPropertyUint32(ctx, names, count++, JS_NewString(ctx, entry->d_name));
    closedir(dir);
    return names;
}

/* stat(path) -> [kind, size, modified] with kind 0 for a file, 1 for a directory, 2 for others */
static JSValue host_stat(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    struct stat st;
    const char *path = JS_ToCString(ctx, argv[0]);
    if (!path)
        return JS_EXCEPTION;
    int rc = stat(path, &st);
    JS_FreeCString(ctx, path);
    if (rc < 0)
        return errno_result(ctx);
    JSValue result = JS_NewArray(ctx);
    JS_SetPropertyUint32(ctx, result, 0, JS_NewInt32(ctx, S_ISREG(st.st_mode) ? 0 : S_ISDIR(st.st_mode) ? 1 : 2));
    JS_SetPropertyUint32(ctx, result, 1, JS_NewInt64(ctx, st.st_size));
    JS_SetPropertyUint32(ctx, result, 2, JS_NewFloat64(ctx, st.st_mtim.tv_sec * 1e3 + st.st_mtim.tv_nsec / 1e6));
    return result;
}

enum { MAKE_DIRECTORY, REMOVE_FILE, REMOVE_DIRECTORY, RENAME };

static JSValue host_change(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv, int operation) {
    const char *path = JS_ToCString(ctx, argv[0]), *to = NULL;
    int rc = -1;
    if (!path)
        return JS_EXCEPTION;
    switch (operation) {
    case MAKE_DIRECTORY: rc = mkdir(path, 0777); break;
    case REMOVE_FILE: rc = unlink(path); break;
    case REMOVE_DIRECTORY: rc = rmdir(path); break;
    case RENAME:
        to = JS_ToCString(ctx, argv[1]);
        if (!to) {
            JS_FreeCString(ctx, path);
            return JS_EXCEPTION;
        }
        rc = rename(path, to);
        JS_FreeCString(ctx, to);
        break;
    }
    JSValue result = rc < 0 ? errno_result(ctx) : JS_NewInt32(ctx, 0);
    JS_FreeCString(ctx, path);
    return result;
}

static JSValue host_random(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    size_t length;
    uint8_t *data = JS_GetUint8Array(ctx, &length, argv[0]);
    if (!data && length)
        return JS_EXCEPTION;
    for (size_t at = 0; at < length; at += 256)
        if (getentropy(data + at, length - at < 256 ? length - at : 256))
            return errno_result(ctx);
    return JS_NewInt32(ctx, 0);
}

/* decode(Uint8Array) -> string, with invalid UTF-8 replaced; encode(string) -> Uint8Array */
static JSValue host_decode(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    size_t length;
    uint8_t *data = JS_GetUint8Array(ctx, &length, argv[0]);
    if (!data && length)
        return JS_EXCEPTION;
    return JS_NewStringLen(ctx, (const char *)data, length);
}

static JSValue host_encode(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, argv[0]);
    if (!text)
        return JS_EXCEPTION;
    JSValue result = JS_NewUint8ArrayCopy(ctx, (const uint8_t *)text, length);
    JS_FreeCString(ctx, text);
    return result;
}

static JSValue host_exit(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    int32_t status;
    if (JS_ToInt32(ctx, &status, argv[0]))
        return JS_EXCEPTION;
    if (!session)
        exit(status & 0xff);
    stopping = true;
    session_status = status & 0xff;
    JSValue error = JS_NewError(ctx);
    JS_SetUncatchableError(ctx, error);
    return JS_Throw(ctx, error);
}

/* nestingDepth(text) -> the maximum nesting depth of brackets in JSON. The engine's JSON parser recurses on the call
 * stack of WebAssembly and uses almost no shadow stack, so the stack limit does not stop it. */
static JSValue host_nesting_depth(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, argv[0]);
    if (!text)
        return JS_EXCEPTION;
    int depth = 0, max_depth = 0;
    bool string = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                string = false;
        } else if (c == '"') {
            string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > max_depth)
                max_depth = depth;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    JS_FreeCString(ctx, text);
    return JS_NewInt32(ctx, max_depth);
}

/* promiseState(value) -> 0 pending, 1 fulfilled, 2 rejected, -1 not a promise */
static JSValue host_promise_state(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    return JS_NewInt32(ctx, JS_PromiseState(ctx, argv[0]));
}

/* script(source, name): runs a script and returns the value of its last expression.
 * script(source, name, true): also accepts `await` outside of functions. Returns an array of the value and whether the
 * value is a promise of `{ value }`. */
static JSValue host_script(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    const int flags = JS_EVAL_TYPE_GLOBAL | JS_EVAL_FLAG_COMPILE_ONLY;
    size_t length;
    const char *source = JS_ToCStringLen(ctx, &length, argv[0]);
    if (!source)
        return JS_EXCEPTION;
    const char *name = JS_ToCString(ctx, argv[1]);
    bool allow_await = argc > 2 && JS_ToBool(ctx, argv[2]), is_async = false;
    JSValue code = name ? JS_Eval(ctx, source, length, name, flags) : JS_EXCEPTION;
    if (name && allow_await && JS_IsException(code) && JS_DetectModule(source, length)) {
        JSValue error = JS_GetException(ctx);
        code = JS_Eval(ctx, source, length, name, flags | JS_EVAL_FLAG_ASYNC);
        is_async = !JS_IsException(code);
        if (is_async) {
            JS_FreeValue(ctx, error);
        } else {
            JS_FreeValue(ctx, JS_GetException(ctx));
            JS_Throw(ctx, error);
        }
    }
    JS_FreeCString(ctx, name);
    JS_FreeCString(ctx, source);
    JSValue result = JS_IsException(code) ? code : JS_EvalFunction(ctx, code);
    if (!allow_await || JS_IsException(result))
        return result;
    JSValue pair = JS_NewArray(ctx);
    JS_SetPropertyUint32(ctx, pair, 0, result);
    JS_SetPropertyUint32(ctx, pair, 1, JS_NewBool(ctx, is_async));
    return pair;
}

static const JSCFunctionListEntry host_functions[] = {
    JS_CFUNC_DEF("write", 2, host_write),
    JS_CFUNC_DEF("read", 1, host_read),
    JS_CFUNC_DEF("readSome", 2, host_read_some),
    JS_CFUNC_DEF("writeFile", 3, host_write_file),
    JS_CFUNC_DEF("list", 1, host_list),
    JS_CFUNC_DEF("stat", 1, host_stat),
    JS_CFUNC_MAGIC_DEF("mkdir", 1, host_change, MAKE_DIRECTORY),
    JS_CFUNC_MAGIC_DEF("unlink", 1, host_change, REMOVE_FILE),
    JS_CFUNC_MAGIC_DEF("rmdir", 1, host_change, REMOVE_DIRECTORY),
    JS_CFUNC_MAGIC_DEF("rename", 2, host_change, RENAME),
    JS_CFUNC_DEF("random", 1, host_random),
    JS_CFUNC_DEF("decode", 1, host_decode),
    JS_CFUNC_DEF("encode", 1, host_encode),
    JS_CFUNC_DEF("exit", 1, host_exit),
    JS_CFUNC_DEF("nestingDepth", 1, host_nesting_depth),
    JS_CFUNC_DEF("promiseState", 1, host_promise_state),
    JS_CFUNC_DEF("script", 3, host_script),
};

static JSValue string_array(JSContext *ctx, int count, char **values) {
    JSValue array = JS_NewArray(ctx);
    for (int i = 0; i < count; i++)
        JS_SetPropertyUint32(ctx, array, i, JS_NewString(ctx, values[i]));
    return array;
}

static JSValue new_host(JSContext *ctx, int argc, char **argv) {
    JSValue host = JS_NewObject(ctx);
    int count = 0;
    while (environ && environ[count])
        count++;
    JS_SetPropertyFunctionList(ctx, host, host_functions, countof(host_functions));
    JS_SetPropertyStr(ctx, host, "argv", string_array(ctx, argc, argv));
    JS_SetPropertyStr(ctx, host, "environ", string_array(ctx, count, environ));
    return host;
}

/* Calls a method of the runtime object. An exception means a bug in prelude.js or exhausted memory. */
static JSValue call_runtime(JSContext *ctx, const char *name, int argc, JSValueConst *argv) {
    JSValue function = JS_GetPropertyStr(ctx, runtime, name);
    JSValue result = JS_Call(ctx, function, runtime, argc, argv);
    JS_FreeValue(ctx, function);
    return result;
}

/* Prints the exception without the runtime object, and exits. For failures of the runtime itself. */
static void fatal(JSContext *ctx) {
    JSValue error = JS_GetException(ctx);
    const char *text = JS_ToCString(ctx, error);
    fprintf(stderr, "%s\n", text ? text : "fatal: an exception that cannot be converted to a string");
    exit(1);
}

/* Exits with status 1. In a session, it only clears the timers. */
static void fail(JSContext *ctx) {
    if (!session)
        exit(1);
    if (!stopping)
        session_status = 1;
    JSValue result = call_runtime(ctx, "clearTimers", 0, NULL);
    if (JS_IsException(result))
        fatal(ctx);
    JS_FreeValue(ctx, result);
}

/* Prints an uncaught exception and fails. */
static void fail_with_exception(JSContext *ctx) {
    JSValue error = JS_GetException(ctx);
    if (!stopping) {
        JSValue result = call_runtime(ctx, "printUncaught", 1, (JSValueConst *)&error);
        if (JS_IsException(result))
            fatal(ctx);
        JS_FreeValue(ctx, result);
    }
    JS_FreeValue(ctx, error);
    fail(ctx);
}

static double to_number(JSContext *ctx, JSValue value) {
    double result;
    if (JS_IsException(value) || JS_ToFloat64(ctx, &result, value))
        fatal(ctx);
    JS_FreeValue(ctx, value);
    return result;
}

static JSModuleDef *load_module(JSContext *ctx, const char *name, void *opaque) {
    JSValue argument = JS_NewString(ctx, name);
    JSValue source = call_runtime(ctx, "moduleSource", 1, (JSValueConst *)&argument);
    JS_FreeValue(ctx, argument);
    if (JS_IsException(source))
        return NULL;
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, source);
    JS_FreeValue(ctx, source);
    if (!text)
        return NULL;
    JSValue module = JS_Eval(ctx, text, length, name, JS_EVAL_TYPE_MODULE | JS_EVAL_FLAG_COMPILE_ONLY);
    JS_FreeCString(ctx, text);
    if (JS_IsException(module))
        return NULL;
    JSModuleDef *definition = JS_VALUE_GET_PTR(module);
    JSValue meta = JS_GetImportMeta(ctx, definition);
    JSValue url = JS_NewString(ctx, name);
    JS_SetPropertyStr(ctx, meta, "filename", url);
    JS_FreeValue(ctx, meta);
    JS_FreeValue(ctx, module);
    return definition;
}

/* Records a rejection. The engine may call it when the stack is exhausted, so it may use 32 KiB more. */
static void track_rejection(JSContext *ctx, JSValueConst promise, JSValueConst reason, bool handled, void *opaque) {
    JSValueConst arguments[] = {promise, reason, JS_NewBool(ctx, handled)};
    JSRuntime *rt = JS_GetRuntime(ctx);
    uintptr_t limit = rt->stack_limit;
    rt->stack_limit -= 32 * 1024;
    JSValue result = call_runtime(ctx, "trackRejection", 3, arguments);
    rt->stack_limit = limit;
    if (JS_IsException(result))
        fatal(ctx);
    JS_FreeValue(ctx, result);
}

static void run_jobs(JSContext *ctx) {
    while (!stopping) {
        int rc = JS_ExecutePendingJob(JS_GetRuntime(ctx), NULL);
        if (rc < 0)
            fail_with_exception(ctx);
        if (rc == 0)
            break;
    }
    JSValue result = call_runtime(ctx, "reportRejection", 0, NULL);
    if (JS_IsException(result))
        fail_with_exception(ctx);
    else if (JS_ToBool(ctx, result))
        fail(ctx);
    JS_FreeValue(ctx, result);
}

static void sleep_ms(double milliseconds) {
    struct timespec time = {(time_t)(milliseconds / 1e3), (long)(fmod(milliseconds, 1e3) * 1e6)};
    nanosleep(&time, NULL);
}

/* Runs jobs, then timers when they are due, until none are left. */
static void run_loop(JSContext *ctx) {
    run_jobs(ctx);
    while (!stopping) {
        double wait = to_number(ctx, call_runtime(ctx, "nextTimeout", 0, NULL));
        if (wait < 0)
            return;
        if (wait > 0)
            sleep_ms(wait);
        JSValue result = call_runtime(ctx, "runTimer", 0, NULL);
        if (JS_IsException(result))
            fail_with_exception(ctx);
        JS_FreeValue(ctx, result);
        run_jobs(ctx);
    }
}

static bool ends_with(const char *name, const char *suffix) {
    size_t length = strlen(name), suffix_length = strlen(suffix);
    return length >= suffix_length && !strcmp(name + length - suffix_length, suffix);
}

/* Compiles source text as a script. If that fails and the text contains `import`, `export` or `await` at its top level,
 * compiles it as a module. Otherwise throws the error of the first attempt. */
static JSValue compile(JSContext *ctx, const char *text, size_t length, const char *name, bool *module) {
    const int flags = JS_EVAL_FLAG_COMPILE_ONLY;
    *module = ends_with(name, ".mjs");
    if (*module)
        return JS_Eval(ctx, text, length, name, flags | JS_EVAL_TYPE_MODULE);
    JSValue script = JS_Eval(ctx, text, length, name, flags | JS_EVAL_TYPE_GLOBAL);
    if (!JS_IsException(script))
        return script;
    JSValue error = JS_GetException(ctx);
    *module = JS_DetectModule(text, length);
    if (*module && session) {
        /* An async script leaves its definitions to the next piece. A module does not. */
        script = JS_Eval(ctx, text, length, name, flags | JS_EVAL_TYPE_GLOBAL | JS_EVAL_FLAG_ASYNC);
        if (!JS_IsException(script)) {
            JS_FreeValue(ctx, error);
            return script;
        }
        JS_FreeValue(ctx, JS_GetException(ctx));
    }
    JSValue code = *module ? JS_Eval(ctx, text, length, name, flags | JS_EVAL_TYPE_MODULE) : JS_EXCEPTION;
    if (*module) {
        JS_FreeValue(ctx, error);
        return code;
    }
    return JS_Throw(ctx, error);
}

/* Runs source text, with all jobs and timers that it starts. Returns the exit status. */
static int run(JSContext *ctx, const char *text, size_t length, const char *name) {
    bool module;
    JSValue code = compile(ctx, text, length, name, &module);
    JSValue result = JS_IsException(code) ? code : JS_EvalFunction(ctx, code);
    if (JS_IsException(result))
        fail_with_exception(ctx);
    run_loop(ctx);
    JSValueConst arguments[] = {result, JS_NewBool(ctx, module)};
    int status = (int)to_number(ctx, call_runtime(ctx, "exitStatus", 2, arguments)) & 0xff;
    JS_FreeValue(ctx, result);
    return status;
}

/* Sets the stack limit of scripts: STACK_BYTES below the current frame. */
static void set_stack_limit(JSRuntime *rt) { rt->stack_limit = (uintptr_t)__builtin_frame_address(0) - STACK_BYTES; }

#include "requests.h"

int main(int argc, char **argv) {
    JSRuntime *rt = JS_NewRuntime();
    JSContext *ctx = rt ? JS_NewContext(rt) : NULL;
    if (!ctx) {
        fputs("JavaScript: cannot start the engine: out of memory\n", stderr);
        return 1;
    }
    rt->stack_size = STACK_BYTES;
    set_stack_limit(rt);

    JSValue factory = JS_Eval(ctx, prelude, sizeof prelude - 1, "prelude.js", JS_EVAL_TYPE_GLOBAL);
    if (JS_IsException(factory))
        fatal(ctx);
    JSValue host = new_host(ctx, argc, argv);
    runtime = JS_Call(ctx, factory, JS_UNDEFINED, 1, (JSValueConst *)&host);
    if (JS_IsException(runtime))
        fatal(ctx);
    JS_SetModuleLoaderFunc(rt, NULL, load_module, NULL);
    JS_SetHostPromiseRejectionTracker(rt, track_rejection, NULL);
    if (argc == 2 && !strcmp(argv[1], "--freeze"))
        freeze(ctx);

    JSValue source = call_runtime(ctx, "main", 0, NULL);
    if (JS_IsException(source))
        fatal(ctx);
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, source);
    JSValue name_value = JS_GetPropertyStr(ctx, runtime, "name");
    const char *name = JS_ToCString(ctx, name_value);
    if (!text || !name)
        fatal(ctx);
    return run(ctx, text, length, name);
}
