/* A module with commands that add a member to a set, of which it tells the server more or less: for
   tests/test_unknown_commands.py. It declares the few functions of the module API that it calls, and needs no header. */

typedef struct Context Context;
typedef struct String String;
typedef int Command(Context *, String **, int);

static void *(*call)(Context *, const char *, const char *, ...);
static void (*forget)(void *);
static int (*answer)(Context *, long long);
static int (*create)(Context *, const char *, Command *, const char *, int, int, int);
static void *(*command_of)(Context *, const char *);
static int (*create_below)(void *, const char *, Command *, const char *, int, int, int);
static void (*present)(Context *, const char *, int, int);

/* NAME … key member */
static int add(Context *context, String **words, int count) {
    if (count < 3) return answer(context, -1);
    forget(call(context, "SADD", "!ss", words[count - 2], words[count - 1]));
    return answer(context, 1);
}

static int look(Context *context, String **words, int count) {
    (void)words;
    return answer(context, count);
}

int RedisModule_OnLoad(Context *context, String **words, int count) {
    /* The first word of a context is the function that finds all others. */
    int (*find)(const char *, void *) = *(int (**)(const char *, void *))context;
    (void)words, (void)count;
    find("RedisModule_SetModuleAttribs", &present);
    find("RedisModule_Call", &call);
    find("RedisModule_FreeCallReply", &forget);
    find("RedisModule_ReplyWithLongLong", &answer);
    find("RedisModule_CreateCommand", &create);
    present(context, "made", 1, 1);
    create(context, "made.told", add, "write", 1, 1, 1);
    create(context, "made.untold", add, "write", 0, 0, 0);
    create(context, "made.silent", add, "", 1, 1, 1);
    create(context, "made.look", look, "readonly", 1, 1, 1);
    /* From 7.0 on. */
    if (find("RedisModule_CreateSubcommand", &create_below) == 0) {
        find("RedisModule_GetCommand", &command_of);
        create(context, "made.box", 0, "", 0, 0, 0);
        create_below(command_of(context, "made.box"), "add", add, "write", 2, 2, 1);
        create_below(command_of(context, "made.box"), "look", look, "readonly", 2, 2, 1);
    }
    return 0;
}
