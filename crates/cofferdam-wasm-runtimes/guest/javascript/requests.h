/* Serves requests in a copy of the memory that `--freeze` prepared. Part of main.c.
 *
 * A request consists of fields that end with NUL, then the source text. The fields are the mode, the directory, the
 * count of arguments, the arguments, the count of variables and the variables. preparation.rs describes the protocol.
 */

#define REQUEST_FD 2047

static JSContext *saved_context;
static bool started;
static char *last_directory;
static char *last_variables;
static size_t last_variables_length;

_Noreturn void __wasi_proc_exit(uint32_t status);

/* A reader of the remaining part of a request. */
typedef struct {
    char *at, *end;
} Reader;

/* Returns the next field. A zero byte follows each request, so that reads of a malformed one stay within it. */
static char *next_field(Reader *reader) {
    char *start = reader->at, *end = memchr(start, 0, reader->end - start);
    reader->at = end ? end + 1 : reader->end;
    return start;
}

/* Reads a count and as many fields into an array. Skips the fields if there is no array. */
static void next_fields(JSContext *ctx, Reader *reader, JSValue *array) {
    int count = atoi(next_field(reader));
    for (int i = 0; i < count && reader->at < reader->end; i++) {
        char *value = next_field(reader);
        if (array)
            JS_SetPropertyUint32(ctx, *array, i, JS_NewString(ctx, value));
    }
}

/* Sets the environment variables if they differ from those of the previous request. */
static void set_variables(JSContext *ctx, Reader *reader) {
    Reader start = *reader;
    next_fields(ctx, reader, NULL);
    size_t length = reader->at - start.at;
    if (last_variables && length == last_variables_length && !memcmp(last_variables, start.at, length))
        return;
    free(last_variables);
    last_variables = malloc(length);
    last_variables_length = last_variables ? length : 0;
    if (last_variables)
        memcpy(last_variables, start.at, length);
    JSValue array = JS_NewArray(ctx);
    next_fields(ctx, &start, &array);
    JSValue result = call_runtime(ctx, "setEnvironment", 1, (JSValueConst *)&array);
    if (JS_IsException(result))
        fatal(ctx);
    JS_FreeValue(ctx, array);
}

/* Saves the variables of the startup in the format of a request. A request with the same variables then sets none. */
static void save_initial_variables(void) {
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
    JSValue result = call_runtime(ctx, "setDirectory", 1, (JSValueConst *)&name);
    if (JS_IsException(result))
        fatal(ctx);
    JS_FreeValue(ctx, name);
}

/* Sets the state that must differ between copies: a random seed for each request, and the time origin of the clock. A
 * session may have been copied after its previous piece, so each piece gets a new seed. */
static void reseed(JSContext *ctx) {
    if (getentropy(&ctx->random_state, sizeof ctx->random_state) || ctx->random_state == 0)
        ctx->random_state = 1;
    if (started)
        return;
    started = true;
    ctx->time_origin = js__now_ms();
}

/* Serves one request. A script ends the process. A piece of a session returns. */
__attribute__((export_name("cofferdam_run"))) void cofferdam_run(void) {
    JSContext *ctx = saved_context;
    size_t length;
    set_stack_limit(JS_GetRuntime(ctx));
    reseed(ctx);
    char *request = (char *)read_all(ctx, REQUEST_FD, &length);
    if (!request)
        fatal(ctx);
    Reader reader = {request, request + length};
    session = !strcmp(next_field(&reader), "session");
    stopping = false;
    session_status = 0;
    set_directory(ctx, next_field(&reader));
    JSValue arguments = JS_NewArray(ctx);
    const char *name = memchr(reader.at, 0, reader.end - reader.at) ? strchr(reader.at, 0) + 1 : "";
    next_fields(ctx, &reader, &arguments);
    JSValue result = call_runtime(ctx, "setArguments", 1, (JSValueConst *)&arguments);
    if (JS_IsException(result))
        fatal(ctx);
    JS_FreeValue(ctx, arguments);
    set_variables(ctx, &reader);
    if (reader.end - reader.at >= 3 && !memcmp(reader.at, "\xef\xbb\xbf", 3))
        reader.at += 3;
    int status = run(ctx, reader.at, reader.end - reader.at, name);
    if (!session)
        __wasi_proc_exit(status);
    js_free(ctx, request);
    char text[16];
    int digits = snprintf(text, sizeof text, "%d", session_status ? session_status : status);
    write_all(REQUEST_FD, (uint8_t *)text, digits);
}

/* Allocates and frees memory, so that the allocator has free blocks when a run starts. To grow the memory during a run
 * takes longer than a small script. The allocator keeps freed blocks by size, in powers of two of WebAssembly's pages.
 * Each block is smaller than that by the allocator's own header. */
static void preallocate(void) {
    enum { PAGE = 64 * 1024, MAX_PAGES = 16 };
    for (int pages = 1; pages <= 8; pages *= 2) {
        void *volatile blocks[MAX_PAGES];
        for (int i = 0; i < MAX_PAGES / pages; i++)
            blocks[i] = malloc(pages * PAGE - 1024);
        for (int i = 0; i < MAX_PAGES / pages; i++)
            free(blocks[i]);
    }
}

/* Prepares the memory for requests and exits. */
static _Noreturn void freeze(JSContext *ctx) {
    saved_context = ctx;
    set_directory(ctx, "/workspace");
    save_initial_variables();
    JSRuntime *rt = JS_GetRuntime(ctx);
    JS_RunGC(rt);
    /* With a lower threshold, the first allocation of each run would start a garbage collection of all objects. */
    JS_SetGCThreshold(rt, rt->malloc_state.malloc_size + 1024 * 1024);
    preallocate();
    write_all(1, (const uint8_t *)"0\n", 2);
    __wasi_proc_exit(0);
}
