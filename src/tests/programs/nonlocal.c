// nonlocal: leaves functions otherwise than by a return, in every way that C has. In: nothing. Out: "called", and the
// exit status, 0 if all went as it should.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "check.h"

enum { TIMES = 20, SIZE = 1 << 16 };

static jmp_buf here;
static sigjmp_buf here_with_signals;
static ucontext_t main_context, other;
static char stack[SIZE] __attribute__((aligned(16)));
static volatile int visits;

static void jumps(void)
{
	volatile int came = 0;

	if (setjmp(here) == 0)
		longjmp(here, 1);
	came++;
	if (_setjmp(here) == 0)
		_longjmp(here, 1);
	came++;
	if (sigsetjmp(here_with_signals, 1) == 0)
		siglongjmp(here_with_signals, 1);
	CHECK(++came == 3);
}

static void visit(void)
{
	visits++;
	CHECK(!swapcontext(&other, &main_context));
	visits++;
}

static void contexts(void)
{
	volatile int again = 0;

	CHECK(!getcontext(&other));
	other.uc_stack.ss_sp = stack;
	other.uc_stack.ss_size = SIZE;
	other.uc_link = &main_context;
	makecontext(&other, visit, 0);
	visits = 0;
	CHECK(!swapcontext(&main_context, &other) && visits == 1);
	CHECK(!swapcontext(&main_context, &other) && visits == 2);
	CHECK(!getcontext(&main_context));
	if (!again++)
		setcontext(&main_context);
	CHECK(again == 2);
}

static void children(void)
{
	int status;
	pid_t pid = vfork();

	if (!pid)
		_exit(7);
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7);
}

static int child(void *unused)
{
	(void)unused;
	return 8;
}

static void clones(void)
{
	int status;
	pid_t pid = clone(child, stack + SIZE, SIGCHLD, NULL);

	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 8);
}

static void came_by(void *counter)
{
	++*(int *)counter;
}

// Unwinds the thread's stack.
static void *exits(void *counter)
{
	pthread_cleanup_push(came_by, counter);
	pthread_exit(counter);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *waits(void *counter)
{
	pthread_cleanup_push(came_by, counter);
	for (;;)
		sleep(1);
	pthread_cleanup_pop(0);
	return NULL;
}

static void threads(void)
{
	int counter = 0;
	pthread_t id;
	void *left;

	CHECK(!pthread_create(&id, NULL, exits, &counter) && !pthread_join(id, &left) && left == &counter);
	CHECK(!pthread_create(&id, NULL, waits, &counter) && !pthread_cancel(id) && !pthread_join(id, &left));
	CHECK(left == PTHREAD_CANCELED && counter >= 1);
}

int main(void)
{
	for (int i = 0; i < TIMES; i++) {
		jumps();
		contexts();
		children();
		clones();
		threads();
	}
	puts("called");
	return 0;
}
