// What libx.c exports. See there.
#include <setjmp.h>

int x_leaf(int n);
int x_down(int n);
void x_jump(int frames, jmp_buf *to);
int x_catch(int frames);
int x_tail(int n);
int x_tail2(int n);
int x_call(int (*callback)(int), int n);
void x_exit_thread(void);
void x_kill(void);
void x_abort(void);
void x_exec(char **words);
int x_fork(void);
void x_wait(const char *said, const char *file);
