/* The command that runs JavaScript in a WASI preview 1 host: QuickJS-NG with a small world around it.
 *
 *   javascript.wasm FILE [ARGUMENT...]      run a file (`-`: standard input)
 *   javascript.wasm -e CODE [ARGUMENT...]   run a piece of code
 *   javascript.wasm --freeze                make ready, and end; what is left in memory serves requests (warm.h)
 *
 * What scripts see is written in prelude.js; this file gives it bytes, files, the clock and an end. Exit status: the
 * script's own; 1 after an exception or a rejection that nobody handled; 2 if there is nothing to run; 13 if a module
 * still awaits when nothing is left to happen.
 *
 * The engine is included, not linked, for its stack limit, which it turns off under WASI; endless recursion would end the
 * module with a trap instead of an exception that the script can catch. The limit counts the shadow stack, so every
 * function that asks for the limit is made to use some of it. The name of the engine's own function was put in
 * parentheses by javascript.rs, so that this macro passes it over.
 */
#define js_check_stack_overflow(rt, size)                                                                              \
    ({                                                                                                                 \
        char spent[1024];                                                                                              \
        __asm__ volatile("" : : "r"(spent) : "memory");                                                                \
        (js_check_stack_overflow)(rt, size);                                                                           \
    })
#include "quickjs.c"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of the shadow stack that scripts may use. The host must give WebAssembly CALL_STACK_BYTES (recipe.rs) of call
 * stack: some functions need several bytes of it for one of the shadow stack. */
#ifndef STACK_BYTES
#define STACK_BYTES (1536 * 1024)
#endif

extern char **environ;

static const char prelude[] = {
#embed "prelude.js"
    , 0};

static JSValue world = JS_UNDEFINED; /* what prelude.js returns */

/* A piece of a session must not end the process: it is told to stop, and what it leaves goes on to the next. */
static bool session, stopping;
static int session_status;

/* Bytes of a string or of a Uint8Array. The first is freed with JS_FreeCString. */
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

/* A number that is an errno, negative, where a call of the host failed: prelude.js makes the exception. */
static JSValue failed(JSContext *ctx) { return JS_NewInt32(ctx, -errno); }

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
    JSValue result = rc < 0 ? failed(ctx) : JS_NewInt32(ctx, 0);
    bytes_free(ctx, &bytes);
    return result;
}

/* The whole of an open file, with a zero behind it. NULL with errno set, or with errno 0 if memory is short. */
static uint8_t *read_all(JSContext *ctx, int fd, size_t *length) {
    size_t room = 63 * 1024, have = 0;
    uint8_t *data = js_malloc(ctx, room + 1);
    while (data) {
        ssize_t n = read(fd, data + have, room - have);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0) {
            int error = errno;
            js_free(ctx, data);
            errno = error;
            return NULL;
        }
        if (n == 0) {
            data[have] = 0;
            *length = have;
            return data;
        }
        have += n;
        if (have == room) {
            uint8_t *more = js_realloc(ctx, data, room * 2 + 1);
            if (!more)
                js_free(ctx, data);
            data = more;
            room *= 2;
        }
    }
    errno = 0;
    return NULL;
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
            return failed(ctx);
    } else if (JS_ToInt32(ctx, &fd, argv[0])) {
        return JS_EXCEPTION;
    }
    uint8_t *data = read_all(ctx, fd, &length);
    JSValue result;
    if (data) {
        result = JS_NewUint8ArrayCopy(ctx, data, length);
        js_free(ctx, data);
    } else {
        result = errno ? failed(ctx) : JS_EXCEPTION;
    }
    if (JS_IsString(argv[0]))
        close(fd);
    return result;
}

/* store(path, data, append) */
static JSValue host_store(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    Bytes bytes;
    const char *path = JS_ToCString(ctx, argv[0]);
    if (!path)
        return JS_EXCEPTION;
    int append = JS_ToBool(ctx, argv[2]);
    int fd = open(path, O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC), 0666);
    JS_FreeCString(ctx, path);
    if (fd < 0)
        return failed(ctx);
    if (bytes_of(ctx, argv[1], &bytes)) {
        close(fd);
        return JS_EXCEPTION;
    }
    int rc = write_all(fd, bytes.data, bytes.length);
    JSValue result = rc < 0 ? failed(ctx) : JS_NewInt32(ctx, 0);
    bytes_free(ctx, &bytes);
    if (close(fd) < 0 && rc == 0)
        result = failed(ctx);
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
        return failed(ctx);
    JSValue names = JS_NewArray(ctx);
    uint32_t count = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            JS_SetPropertyUint32(ctx, names, count++, JS_NewString(ctx, entry->d_name));
    closedir(dir);
    return names;
}

/* stat(path) -> [kind, size, modified] with kind 0 for a file, 1 for a directory, 2 for what is neither */
static JSValue host_stat(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    struct stat st;
    const char *path = JS_ToCString(ctx, argv[0]);
    if (!path)
        return JS_EXCEPTION;
    int rc = stat(path, &st);
    JS_FreeCString(ctx, path);
    if (rc < 0)
        return failed(ctx);
    JSValue result = JS_NewArray(ctx);
    JS_SetPropertyUint32(ctx, result, 0, JS_NewInt32(ctx, S_ISREG(st.st_mode) ? 0 : S_ISDIR(st.st_mode) ? 1 : 2));
    JS_SetPropertyUint32(ctx, result, 1, JS_NewInt64(ctx, st.st_size));
    JS_SetPropertyUint32(ctx, result, 2, JS_NewFloat64(ctx, st.st_mtim.tv_sec * 1e3 + st.st_mtim.tv_nsec / 1e6));
    return result;
}

enum { MAKE_DIRECTORY, REMOVE_FILE, REMOVE_DIRECTORY, RENAME };

static JSValue host_change(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv, int what) {
    const char *path = JS_ToCString(ctx, argv[0]), *to = NULL;
    int rc = -1;
    if (!path)
        return JS_EXCEPTION;
    switch (what) {
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
    JSValue result = rc < 0 ? failed(ctx) : JS_NewInt32(ctx, 0);
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
            return failed(ctx);
    return JS_NewInt32(ctx, 0);
}

/* decode(Uint8Array) -> string, what is no UTF-8 replaced; encode(string) -> Uint8Array */
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

/* nesting(text) -> how deep brackets are nested in JSON. The engine's JSON parser recurses on WebAssembly's own stack and
 * uses next to nothing of the shadow stack, so its limit does not stop it. */
static JSValue host_nesting(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, argv[0]);
    if (!text)
        return JS_EXCEPTION;
    int depth = 0, most = 0;
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
            if (++depth > most)
                most = depth;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    JS_FreeCString(ctx, text);
    return JS_NewInt32(ctx, most);
}

/* state(promise) -> 0 pending, 1 fulfilled, 2 rejected, -1 no promise */
static JSValue host_state(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    return JS_NewInt32(ctx, JS_PromiseState(ctx, argv[0]));
}

/* script(source, name): runs as a script, gives its last value */
static JSValue host_script(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv) {
    size_t length;
    const char *source = JS_ToCStringLen(ctx, &length, argv[0]);
    if (!source)
        return JS_EXCEPTION;
    const char *name = JS_ToCString(ctx, argv[1]);
    JSValue result = name ? JS_Eval(ctx, source, length, name, JS_EVAL_TYPE_GLOBAL) : JS_EXCEPTION;
    JS_FreeCString(ctx, name);
    JS_FreeCString(ctx, source);
    return result;
}

static const JSCFunctionListEntry host_functions[] = {
    JS_CFUNC_DEF("write", 2, host_write),
    JS_CFUNC_DEF("read", 1, host_read),
    JS_CFUNC_DEF("store", 3, host_store),
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
    JS_CFUNC_DEF("nesting", 1, host_nesting),
    JS_CFUNC_DEF("state", 1, host_state),
    JS_CFUNC_DEF("script", 2, host_script),
};

static JSValue strings(JSContext *ctx, int count, char **values) {
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
    JS_SetPropertyStr(ctx, host, "argv", strings(ctx, argc, argv));
    JS_SetPropertyStr(ctx, host, "environ", strings(ctx, count, environ));
    return host;
}

/* Calls a function of the world. An exception in there is a fault of prelude.js, or memory that ran out. */
static JSValue ask(JSContext *ctx, const char *name, int argc, JSValueConst *argv) {
    JSValue function = JS_GetPropertyStr(ctx, world, name);
    JSValue result = JS_Call(ctx, function, world, argc, argv);
    JS_FreeValue(ctx, function);
    return result;
}

/* The last resort: says what went wrong without the help of the world, and ends. */
static void give_up(JSContext *ctx) {
    JSValue error = JS_GetException(ctx);
    const char *text = JS_ToCString(ctx, error);
    fprintf(stderr, "%s\n", text ? text : "an exception that cannot be shown");
    exit(1);
}

/* Ends after a failure; a session only forgets its timers. */
static void fail(JSContext *ctx) {
    if (!session)
        exit(1);
    if (!stopping)
        session_status = 1;
    JSValue result = ask(ctx, "abandon", 0, NULL);
    if (JS_IsException(result))
        give_up(ctx);
    JS_FreeValue(ctx, result);
}

/* Shows an exception that nobody caught, as the world shows errors, and fails. */
static void die(JSContext *ctx) {
    JSValue error = JS_GetException(ctx);
    if (!stopping) {
        JSValue result = ask(ctx, "uncaught", 1, (JSValueConst *)&error);
        if (JS_IsException(result))
            give_up(ctx);
        JS_FreeValue(ctx, result);
    }
    JS_FreeValue(ctx, error);
    fail(ctx);
}

static double number(JSContext *ctx, JSValue value) {
    double result;
    if (JS_IsException(value) || JS_ToFloat64(ctx, &result, value))
        give_up(ctx);
    JS_FreeValue(ctx, value);
    return result;
}

static JSModuleDef *load_module(JSContext *ctx, const char *name, void *opaque) {
    JSValue argument = JS_NewString(ctx, name);
    JSValue source = ask(ctx, "source", 1, (JSValueConst *)&argument);
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

/* Called wherever a promise is rejected, also because the stack is used up: it has to have some of it all the same. */
static void track_rejection(JSContext *ctx, JSValueConst promise, JSValueConst reason, bool handled, void *opaque) {
    JSValueConst arguments[] = {promise, reason, JS_NewBool(ctx, handled)};
    JSRuntime *rt = JS_GetRuntime(ctx);
    uintptr_t limit = rt->stack_limit;
    rt->stack_limit -= 32 * 1024;
    JSValue result = ask(ctx, "rejection", 3, arguments);
    rt->stack_limit = limit;
    if (JS_IsException(result))
        give_up(ctx);
    JS_FreeValue(ctx, result);
}

static void run_jobs(JSContext *ctx) {
    while (!stopping) {
        int rc = JS_ExecutePendingJob(JS_GetRuntime(ctx), NULL);
        if (rc < 0)
            die(ctx);
        if (rc == 0)
            break;
    }
    JSValue result = ask(ctx, "drained", 0, NULL);
    if (JS_IsException(result))
        die(ctx);
    else if (JS_ToBool(ctx, result))
        fail(ctx);
    JS_FreeValue(ctx, result);
}

static void pause_for(double milliseconds) {
    struct timespec time = {(time_t)(milliseconds / 1e3), (long)(fmod(milliseconds, 1e3) * 1e6)};
    nanosleep(&time, NULL);
}

/* Jobs, then timers as they come due, until nothing is left. */
static void run_loop(JSContext *ctx) {
    run_jobs(ctx);
    while (!stopping) {
        double wait = number(ctx, ask(ctx, "next", 0, NULL));
        if (wait < 0)
            return;
        if (wait > 0)
            pause_for(wait);
        JSValue result = ask(ctx, "fire", 0, NULL);
        if (JS_IsException(result))
            die(ctx);
        JS_FreeValue(ctx, result);
        run_jobs(ctx);
    }
}

static bool ends_with(const char *name, const char *end) {
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && !strcmp(name + length - end_length, end);
}

/* A script, if it is one; else a module, if it is one of those, as `import` and `await` say; else the error of the
 * first attempt. */
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
        /* A script that awaits leaves its names to the next piece, which a module does not. */
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

/* Runs source text and all that it starts. Gives the exit status. */
static int run(JSContext *ctx, const char *text, size_t length, const char *name) {
    bool module;
    JSValue code = compile(ctx, text, length, name, &module);
    JSValue result = JS_IsException(code) ? code : JS_EvalFunction(ctx, code);
    if (JS_IsException(result))
        die(ctx);
    run_loop(ctx);
    JSValueConst arguments[] = {result, JS_NewBool(ctx, module)};
    int status = (int)number(ctx, ask(ctx, "status", 2, arguments)) & 0xff;
    JS_FreeValue(ctx, result);
    return status;
}

/* Scripts may use the stack from here downwards. */
static void begin_stack(JSRuntime *rt) { rt->stack_limit = (uintptr_t)__builtin_frame_address(0) - STACK_BYTES; }

#include "warm.h"

int main(int argc, char **argv) {
    JSRuntime *rt = JS_NewRuntime();
    JSContext *ctx = rt ? JS_NewContext(rt) : NULL;
    if (!ctx) {
        fputs("JavaScript: no memory to start with\n", stderr);
        return 1;
    }
    rt->stack_size = STACK_BYTES;
    begin_stack(rt);

    JSValue make = JS_Eval(ctx, prelude, sizeof prelude - 1, "prelude.js", JS_EVAL_TYPE_GLOBAL);
    if (JS_IsException(make))
        give_up(ctx);
    JSValue host = new_host(ctx, argc, argv);
    world = JS_Call(ctx, make, JS_UNDEFINED, 1, (JSValueConst *)&host);
    if (JS_IsException(world))
        give_up(ctx);
    JS_SetModuleLoaderFunc(rt, NULL, load_module, NULL);
    JS_SetHostPromiseRejectionTracker(rt, track_rejection, NULL);
    if (argc == 2 && !strcmp(argv[1], "--freeze"))
        freeze(ctx);

    JSValue source = ask(ctx, "main", 0, NULL);
    if (JS_IsException(source))
        give_up(ctx);
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, source);
    JSValue name_value = JS_GetPropertyStr(ctx, world, "name");
    const char *name = JS_ToCString(ctx, name_value);
    if (!text || !name)
        give_up(ctx);
    return run(ctx, text, length, name);
}
