// A library to be hooked with --lib: each x_ function does one thing that is hard for a recorder.
// What goes in: calls of x.c. What goes out: nothing but what the names say. To be built with -O2: calls
// between x_ functions go through pointers that the compiler cannot see through, so that it makes no loop
// of them, and a jump only of those that end a function.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "x.h"

int x_leaf(int n)
{
	__asm__ volatile("" ::: "memory");
	return n + 1;
}

static int (*volatile leaf)(int) = x_leaf;

int x_down(int n)
{
	static int (*volatile down)(int) = x_down;

	return n > 1 ? down(n - 1) + 1 : 1;
}

void x_jump(int frames, jmp_buf *to)
{
	static void (*volatile jump)(int, jmp_buf *) = x_jump;

	if (frames <= 1)
		longjmp(*to, 1);
	jump(frames - 1, to);
	__asm__ volatile("" ::: "memory");
}

int x_catch(int frames)
{
	static void (*volatile jump)(int, jmp_buf *) = x_jump;
	jmp_buf here;

	if (!setjmp(here))
		jump(frames, &here);
	return leaf(frames) + 1;
}

// These end in a jump: they return when the leaf does.
int x_tail(int n)
{
	return leaf(n + 1);
}

int x_tail2(int n)
{
	static int (*volatile tail)(int) = x_tail;

	return tail(n + 1);
}

int x_call(int (*callback)(int), int n)
{
	return callback(n) + 1;
}

void x_exit_thread(void)
{
	pthread_exit(NULL);
}

void x_kill(void)
{
	kill(getpid(), SIGKILL);
	pause();
}

void x_abort(void)
{
	abort();
}

void x_exec(char **words)
{
	execv(words[0], words);
}

int x_fork(void)
{
	return fork();
}

void x_wait(const char *said, const char *file)
{
	puts(said);
	fflush(stdout);
	while (access(file, F_OK))
		usleep(1000);
}
