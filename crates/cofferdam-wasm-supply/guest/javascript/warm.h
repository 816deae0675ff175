/* Serving requests from a copy of the memory that `--freeze` left. Part of main.c. A request is fields that end with NUL,
 * then source text: the mode, the directory, a count and as many arguments, a count and as many variables. */

#define REQUEST 2047

static JSContext *frozen;
static bool begun;
static char *last_directory;
static char *last_variables;
static size_t last_variables_length;

_Noreturn void __wasi_proc_exit(uint32_t status);

/* What is not yet read of a request. */
typedef struct {
    char *at, *end;
} Rest;

/* The next field. The request ends with a zero of its own, so that even a bad one is never left. */
static char *field(Rest *rest) {
    char *start = rest->at, *end = memchr(start, 0, rest->end - start);
    rest->at = end ? end + 1 : rest->end;
    return start;
}

/* The next count of fields, as an array; without one they are only passed over. */
static void fields(JSContext *ctx, Rest *rest, JSValue *array) {
    int count = atoi(field(rest));
    for (int i = 0; i < count && rest->at < rest->end; i++) {
        char *value = field(rest);
        if (array)
            JS_SetPropertyUint32(ctx, *array, i, JS_NewString(ctx, value));
    }
}

/* Tells the world about variables, where they differ from those of the request before. */
static void set_variables(JSContext *ctx, Rest *rest) {
    Rest start = *rest;
    fields(ctx, rest, NULL);
    size_t length = rest->at - start.at;
    if (last_variables && length == last_variables_length && !memcmp(last_variables, start.at, length))
        return;
    free(last_variables);
    last_variables = malloc(length);
    last_variables_length = last_variables ? length : 0;
    if (last_variables)
        memcpy(last_variables, start.at, length);
    JSValue array = JS_NewArray(ctx);
    fields(ctx, &start, &array);
    JSValue result = ask(ctx, "variables", 1, (JSValueConst *)&array);
    if (JS_IsException(result))
        give_up(ctx);
    JS_FreeValue(ctx, array);
}

/* Keeps the variables that the world has from its start as a request would bring them, so that one with the same costs
 * nothing. */
static void keep_variables(void) {
    int count = 0;
    size_t length = 16;
    for (; environ && environ[count]; count++)
        length += strlen(environ[count]) + 1;
    last_variables = malloc(length);
    if (!last_variables)
        return;
    char *at = last_variables + snprintf(last_variables, 16, "%d", count) + 1;
    for (int i = 0; i < count; i++)
        at = stpcpy(at, environ[i]) + 1;
    last_variables_length = at - last_variables;
}

static void set_directory(JSContext *ctx, const char *directory) {
    if (last_directory && !strcmp(last_directory, directory))
        return;
    if (chdir(directory) < 0) {
        fprintf(stderr, "JavaScript: %s: %s\n", directory, strerror(errno));
        exit(1);
    }
    free(last_directory);
    last_directory = strdup(directory);
    JSValue name = JS_NewString(ctx, directory);
    JSValue result = ask(ctx, "directory", 1, (JSValueConst *)&name);
    if (JS_IsException(result))
        give_up(ctx);
    JS_FreeValue(ctx, name);
}

/* What each copy must have for itself: random numbers, and a clock that begins now. A session may have been copied since
 * its last piece, so that each piece draws numbers of its own. */
static void begin(JSContext *ctx) {
    if (getentropy(&ctx->random_state, sizeof ctx->random_state) || ctx->random_state == 0)
        ctx->random_state = 1;
    if (begun)
        return;
    begun = true;
    ctx->time_origin = js__now_ms();
}

/* Serves one request. A script ends the process, a piece of a session returns. */
__attribute__((export_name("cofferdam_run"))) void cofferdam_run(void) {
    JSContext *ctx = frozen;
    size_t length;
    begin_stack(JS_GetRuntime(ctx));
    begin(ctx);
    char *request = (char *)read_all(ctx, REQUEST, &length);
    if (!request)
        give_up(ctx);
    Rest rest = {request, request + length};
    session = !strcmp(field(&rest), "session");
    stopping = false;
    session_status = 0;
    set_directory(ctx, field(&rest));
    JSValue arguments = JS_NewArray(ctx);
    const char *name = memchr(rest.at, 0, rest.end - rest.at) ? strchr(rest.at, 0) + 1 : "";
    fields(ctx, &rest, &arguments);
    JSValue result = ask(ctx, "arguments", 1, (JSValueConst *)&arguments);
    if (JS_IsException(result))
        give_up(ctx);
    JS_FreeValue(ctx, arguments);
    set_variables(ctx, &rest);
    if (rest.end - rest.at >= 3 && !memcmp(rest.at, "\xef\xbb\xbf", 3))
        rest.at += 3;
    int status = run(ctx, rest.at, rest.end - rest.at, name);
    if (!session)
        __wasi_proc_exit(status);
    js_free(ctx, request);
    char text[16];
    int digits = snprintf(text, sizeof text, "%d", session_status ? session_status : status);
    write_all(REQUEST, (uint8_t *)text, digits);
}

/* Memory that a run can take before it has to ask the host for more, which costs more than a small script. The allocator
 * keeps what is freed by powers of two of WebAssembly's pages, less than one for its own use. */
static void make_room(void) {
    enum { PAGE = 64 * 1024, MOST = 16 };
    for (int pages = 1; pages <= 8; pages *= 2) {
        void *volatile room[MOST];
        for (int i = 0; i < MOST / pages; i++)
            room[i] = malloc(pages * PAGE - 1024);
        for (int i = 0; i < MOST / pages; i++)
            free(room[i]);
    }
}

/* Ends the process with all in memory that requests need. */
static _Noreturn void freeze(JSContext *ctx) {
    frozen = ctx;
    set_directory(ctx, "/workspace");
    keep_variables();
    JSRuntime *rt = JS_GetRuntime(ctx);
    JS_RunGC(rt);
    /* Else the first object of each run would have all of the world looked at. */
    JS_SetGCThreshold(rt, rt->malloc_state.malloc_size + 1024 * 1024);
    make_room();
    write_all(1, (const uint8_t *)"0\n", 2);
    __wasi_proc_exit(0);
}
