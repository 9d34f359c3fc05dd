// odd MODE [ARGS]: lives in a way that a recorder must not disturb, and calls libx meanwhile.
// strict, filter: under seccomp, which kills at any system call but a few. signals LIBRARY...: with handlers of its own
// for stop signals, opens each library. wait FILE LIBRARY: until there is FILE, then opens the library. stay FILE LAST
// LIBRARY: the same, and stays until there is LAST.
// other-user LIBRARY: as another user. children TOTAL AT_ONCE: every tenth calls.
// traced PROGRAM ARGS, seized PROGRAM ARGS: traces a program by the old way (as gdb) or the new one (as strace), passing
// its signals on. What goes out: what it counted; the exit status, 0 if every call gave what it should.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "x.h"

static volatile int conts, stops;

static void leaves(int n)
{
	for (int i = 0; i < n; i++)
		CHECK(x_leaf(i) == i + 1);
}

static void lock(int strict)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {5, steps};

	leaves(1);
	if (strict) {
		CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
	} else {
		CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
		CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
	}
	leaves(1000);
	CHECK(write(1, "locked\n", 7) == 7);
	syscall(SYS_exit, 0);
}

static void came(int signal)
{
	if (signal == SIGCONT)
		conts++;
	else
		stops++;
}

static void open_all(char **libraries)
{
	for (; *libraries; libraries++)
		CHECK(dlopen(*libraries, RTLD_NOW | RTLD_LOCAL));
	leaves(1);
}

static void signals(char **libraries)
{
	signal(SIGCONT, came);
	signal(SIGTSTP, came);
	open_all(libraries);
	printf("continued %d stopped %d\n", conts, stops);
}

static void other_user(char **libraries)
{
	CHECK(!setgroups(0, NULL) && !setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
	open_all(libraries);
	leaves(9);
}

static void child(int number)
{
	if (number % 10 == 0)
		leaves(1);
	_exit(0);
}

static void children(int total, int at_once)
{
	int status;

	for (int done = 0; done < total; done += at_once) {
		for (int i = 0; i < at_once; i++) {
			pid_t pid = fork();
			CHECK(pid >= 0);
			if (!pid)
				child(done + i);
		}
		for (int i = 0; i < at_once; i++)
			CHECK(wait(&status) > 0 && status == 0);
	}
}

static pid_t start(char **words, int seize)
{
	int gate[2];
	char byte;
	CHECK(!pipe(gate));
	pid_t pid = fork();

	if (!pid) {
		close(gate[1]);
		if (!seize)
			ptrace(PTRACE_TRACEME, 0, 0, 0);
		CHECK(read(gate[0], &byte, 1) == 0);
		execv(words[0], words);
		_exit(127);
	}
	close(gate[0]);
	CHECK(!seize || !ptrace(PTRACE_SEIZE, pid, 0, 0));
	close(gate[1]);
	return pid;
}

static void traced(char **words, int seize)
{
	pid_t pid = start(words, seize);
	int status, signal, event;

	while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) {
		signal = WSTOPSIG(status);
		event = status >> 16;
		if (seize && event == PTRACE_EVENT_STOP && signal != SIGTRAP) {
			CHECK(!ptrace(PTRACE_LISTEN, pid, 0, 0));
			continue;
		}
		if (signal == SIGTRAP)
			signal = 0;
		stops += signal == SIGSTOP;
		conts += signal == SIGCONT;
		ptrace(PTRACE_CONT, pid, 0, signal);
	}
	CHECK(WIFEXITED(status));
	printf("continued %d stopped %d status %d\n", conts, stops, WEXITSTATUS(status));
}

static void until(const char *file)
{
	while (access(file, F_OK))
		usleep(1000);
}

static void come_late(char **words, int stays)
{
	puts("waiting");
	fflush(stdout);
	until(words[0]);
	open_all(words + 1 + stays);
	puts("opened");
	fflush(stdout);
	if (stays)
		until(words[1]);
}

int main(int count, char **words)
{
	CHECK(count > 1);
	if (!strcmp(words[1], "strict") || !strcmp(words[1], "filter"))
		lock(words[1][0] == 's');
	else if (!strcmp(words[1], "signals"))
		signals(words + 2);
	else if (!strcmp(words[1], "wait") || !strcmp(words[1], "stay"))
		come_late(words + 2, words[1][0] == 's');
	else if (!strcmp(words[1], "other-user"))
		other_user(words + 2);
	else if (!strcmp(words[1], "children"))
		children(atoi(words[2]), atoi(words[3]));
	else if (!strcmp(words[1], "traced") || !strcmp(words[1], "seized"))
		traced(words + 2, words[1][0] == 's');
	else
		CHECK(!"a mode");
	return 0;
}
