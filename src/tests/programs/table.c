// table PLAN LIBRARY...: opens the libraries and makes the calls of a plan, each with six registers and sixteen
// stack words as the plan has them, and memory as the plan wants it. In: a file of calls (struct call, its pokes
// behind it). Out: the number of calls, and the exit status. x86-64 only: the trampoline is.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct call {
	uint32_t library, pokes;
	char name[80];
	uint64_t registers[6], stack[16];
};

struct poke {
	uint64_t address, length; /* the bytes follow, padded to 8 */
};

#define AREAS 0x200000000000ull
#define BETWEEN 0x100000ull /* what is not an area is not mapped */
#define AREA 0x10000ull

void call_with(void *function, const uint64_t *registers, const uint64_t *stack);
__asm__(".text\n.globl call_with\n.type call_with, @function\ncall_with:\n"
	"push %rbp\nmov %rsp, %rbp\npush %rbx\nsub $136, %rsp\n"
	"mov %rdi, %r11\nmov %rsi, %r10\nmov %rdx, %rsi\nlea (%rsp), %rdi\nmov $16, %ecx\nrep movsq\n"
	"mov (%r10), %rdi\nmov 8(%r10), %rsi\nmov 16(%r10), %rdx\nmov 24(%r10), %rcx\nmov 32(%r10), %r8\n"
	"mov 40(%r10), %r9\ncall *%r11\nmov -8(%rbp), %rbx\nleave\nret\n.size call_with, . - call_with\n"
	".section .note.GNU-stack,\"\",@progbits\n.text\n");

int main(int argc, char **argv)
{
	void *libraries[8];
	struct stat stat;
	int count = 0;
	int fd = argc > 2 ? open(argv[1], O_RDONLY) : -1;

	if (fd < 0 || argc > 10 || fstat(fd, &stat))
		return 2;
	const char *plan = mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (plan == MAP_FAILED)
		return 3;
	for (uint64_t i = 0; i < 24; i++) {
		void *at = (void *)(AREAS + i * BETWEEN);
		if (mmap(at, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at)
			return 4;
		memset(at, 0xee, AREA);
	}
	for (int i = 2; i < argc; i++)
		if (!(libraries[i - 2] = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL))) {
			fprintf(stderr, "%s\n", dlerror());
			return 5;
		}
	for (const char *at = plan; at < plan + stat.st_size; count++) {
		const struct call *call = (const void *)at;
		at += sizeof(*call);
		for (uint32_t i = 0; i < call->pokes; i++) {
			const struct poke *poke = (const void *)at;
			at += sizeof(*poke);
			memcpy((void *)poke->address, at, poke->length);
			at += (poke->length + 7) & ~7ull;
		}
		void *function = dlsym(libraries[call->library], call->name);
		if (!function) {
			fprintf(stderr, "%s\n", dlerror());
			return 6;
		}
		call_with(function, call->registers, call->stack);
	}
	printf("%d calls\n", count);
	return 0;
}
