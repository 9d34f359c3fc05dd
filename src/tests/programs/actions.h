// What src/tests/programs/truth.c does among its calls, besides: a table of actions, each of which makes calls in a way
// that is hard to record. In: truth.c's counts, its call(), a library of few.c (TRUTH_FEW) and a folder to write in
// (TRUTH_FOLDER). Out: calls; what was counted by a library other than the one that writes its counts at exit is added
// to counts->elsewhere.
#include <sched.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "by_hand.h"

enum { STACK = 1 << 16, MOST = 5 };

// A copy of few.c's library.
struct few {
	int (*version)(int *), (*current)(void **), (*host)(void *, void (*)(void *), void *);
	uint64_t (*counted)(const char *);
};

// The names that it has, as places in names[].
enum { VERSION = 0, CURRENT = 6, HOST = 8 };

// Opened once, before any action.
static struct few few;
static const char *few_path, *folder;
static uint64_t (*counted_by_library)(const char *);

static void bracket(int which, int is_end)
{
	__atomic_add_fetch(is_end ? &counts->of[which].ended : &counts->of[which].begun, 1, __ATOMIC_SEQ_CST);
}

static void few_calls(const struct few *of, uint64_t *random)
{
	void *context;
	int version;

	for (int i = 1 + (int)(next(random) % MOST); i; i--) {
		int which = next(random) % 2 ? VERSION : CURRENT;

		bracket(which, 0);
		if (which == VERSION)
			of->version(&version);
		else
			of->current(&context);
		bracket(which, 1);
	}
}

static void call_back(void (*function)(void *), void *data)
{
	bracket(HOST, 0);
	few.host(NULL, function, data);
	bracket(HOST, 1);
}

static void add_elsewhere(uint64_t (*counted)(const char *))
{
	for (int i = 0; i < FUNCTIONS; i++) {
		uint64_t calls = counted(names[i]);

		if (calls != UINT64_MAX)
			__atomic_add_fetch(&counts->elsewhere[i], calls, __ATOMIC_SEQ_CST);
	}
}

static void *open_few(const char *path, struct few *of)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	CHECK(library);
	CHECK((of->version = (int (*)(int *))dlsym(library, names[VERSION])));
	CHECK((of->current = (int (*)(void **))dlsym(library, names[CURRENT])));
	CHECK((of->host = (int (*)(void *, void (*)(void *), void *))dlsym(library, names[HOST])));
	CHECK((of->counted = (uint64_t (*)(const char *))dlsym(library, "few_counted")));
	return library;
}

// --- files ---

static void from_file(int (*make)(const char *, const char *), uint64_t *random)
{
	static int files;
	char path[4096];
	struct few copy;
	void *library;

	snprintf(path, sizeof(path), "%s/file-%d-%d", folder, getpid(), __atomic_add_fetch(&files, 1, __ATOMIC_RELAXED));
	if (!make(few_path, path)) {
		unlink(path);
		return;
	}
	library = open_few(path, &copy);
	few_calls(&copy, random);
	add_elsewhere(copy.counted);
	CHECK(!dlclose(library) && !unlink(path));
}

static void from_same_number(uint64_t *random)
{
	from_file(same_number, random);
}

static void from_overwritten(uint64_t *random)
{
	from_file(overwritten, random);
}

static void from_mapping(uint64_t *random)
{
	char *base = by_hand(few_path, by_mprotect);
	struct few copy;

	CHECK(base);
	CHECK((copy.version = (int (*)(int *))function_in(few_path, base, names[VERSION])));
	CHECK((copy.current = (int (*)(void **))function_in(few_path, base, names[CURRENT])));
	CHECK((copy.counted = (uint64_t (*)(const char *))function_in(few_path, base, "few_counted")));
	few_calls(&copy, random);
	add_elsewhere(copy.counted);
	CHECK(!munmap(base, BY_HAND));
}

// --- children ---

static void wait_for(pid_t pid)
{
	int status;

	CHECK(pid > 0);
	while (waitpid(pid, &status, 0) != pid)
		;
	CHECK(status == 0);
	__atomic_add_fetch(&counts->children, 1, __ATOMIC_SEQ_CST);
}

static int shares_memory(void *random)
{
	few_calls(&few, random);
	_exit(0);
}

static void from_vfork(uint64_t *random)
{
	pid_t pid = vfork();

	if (!pid)
		shares_memory(random);
	wait_for(pid);
}

static void from_clone(uint64_t *random)
{
	char *stack = malloc(STACK);

	wait_for(clone(shares_memory, stack + STACK, CLONE_VM | SIGCHLD, random));
	free(stack);
}

// Its library has counted nothing yet. It calls what takes no lock: another thread may hold that.
static void from_fork(uint64_t *random)
{
	uint64_t held = 0;
	pid_t pid = fork();

	if (!pid) {
		for (int i = 1 + (int)(next(random) % MOST); i; i--)
			call(VERSION, &held);
		add_elsewhere(counted_by_library);
		_exit(0);
	}
	wait_for(pid);
}

// --- stacks ---

static __thread uint64_t *handlers_random;

// Where a thread's other stacks lie, no matter what is around: above and below that of the thread.
static char *new_stack(void)
{
	char *at = mmap(NULL, 3 * STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED && !mprotect(at + STACK, STACK, PROT_READ | PROT_WRITE));
	return at + STACK;
}

static void free_stack(char *stack)
{
	CHECK(!munmap(stack - STACK, 3 * STACK));
}

static void handle(int signal)
{
	(void)signal;
	few_calls(&few, handlers_random);
}

static void raise_signal(void *random)
{
	handlers_random = random;
	raise(SIGUSR1);
}

static void in_handler(uint64_t *random)
{
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK | SA_RESTART};
	char array[STACK], *map = new_stack();
	stack_t alternate = {.ss_sp = next(random) % 2 ? array : map, .ss_size = STACK};

	CHECK(!sigaction(SIGUSR1, &action, NULL) && !sigaltstack(&alternate, NULL));
	call_back(raise_signal, random);
	alternate.ss_flags = SS_DISABLE;
	CHECK(!sigaltstack(&alternate, NULL));
	free_stack(map);
}

struct fiber {
	ucontext_t here, back;
	uint64_t *random;
	int done;
};
static __thread struct fiber *running;

static void yields(void *unused)
{
	struct fiber *self = running;

	(void)unused;
	few_calls(&few, self->random);
	CHECK(!swapcontext(&self->here, &self->back));
	few_calls(&few, self->random);
}

static void fiber_main(void)
{
	struct fiber *self = running;

	for (int i = 1 + (int)(next(self->random) % MOST); i; i--)
		call_back(yields, NULL);
	self->done = 1;
	swapcontext(&self->here, &self->back);
}

// In any order, so that calls end in another than they began.
static void in_coroutines(uint64_t *random)
{
	struct fiber fibers[2] = {{.random = random}, {.random = random}};
	char *stacks[2];

	for (int i = 0; i < 2; i++) {
		stacks[i] = new_stack();
		CHECK(!getcontext(&fibers[i].here));
		fibers[i].here.uc_stack.ss_sp = stacks[i];
		fibers[i].here.uc_stack.ss_size = STACK;
		makecontext(&fibers[i].here, fiber_main, 0);
	}
	while (!fibers[0].done || !fibers[1].done) {
		struct fiber *one = &fibers[next(random) % 2];

		if (one->done)
			continue;
		running = one;
		CHECK(!swapcontext(&one->back, &one->here));
		if (next(random) % 2)
			few_calls(&few, random);
	}
	free_stack(stacks[0]);
	free_stack(stacks[1]);
}

// In the order of src/tests/live/actions.rs.
static const struct action {
	const char *name;
	void (*run)(uint64_t *random);
} actions[] = {
	{"same-number", from_same_number}, {"overwritten", from_overwritten}, {"mprotect", from_mapping},
	{"vfork", from_vfork},             {"clone", from_clone},             {"fork", from_fork},
	{"handler", in_handler},           {"coroutines", in_coroutines},
};
