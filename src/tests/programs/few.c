// A libcuda of a few functions, which count themselves: of its own, so that loading it is quick, and so that it runs
// where a program maps it by hand, without a loader that would relocate anything.
// In: calls. Out: few_counted, how often the function of that name was called in this copy of the library.
#include <stdint.h>

static struct {
	const char name[32];
	uint64_t calls;
} counted[] = {{"cuDriverGetVersion", 0}, {"cuCtxGetCurrent", 0}, {"cuLaunchHostFunc", 0}, {"", 0}};

/* Apart, since the kernel takes no probe at the instruction in it, where it would be the first. */
static __attribute__((noinline)) void count(int function)
{
	__atomic_add_fetch(&counted[function].calls, 1, __ATOMIC_RELAXED);
}

int cuDriverGetVersion(int *version)
{
	count(0);
	*version = 13000;
	return 0;
}

int cuCtxGetCurrent(void **context)
{
	count(1);
	*context = 0;
	return 0;
}

/* Calls back before it returns. */
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
	(void)stream;
	count(2);
	function(data);
	__asm__ volatile("" ::: "memory"); /* no jump */
	return 0;
}

/* These look at what they are given if the module, the direction or the size is not 0. */
int cuModuleGetFunction(void **function, void *module, const char *name)
{
	*function = module && *(volatile const char *)name ? module : 0;
	return 0;
}

int cuMemcpy2D_v2(const uint64_t *copy)
{
	(void)copy;
	return 0;
}

int cuMemAlloc_v2(uint64_t *pointer, uint64_t size)
{
	if (size)
		*(volatile uint64_t *)pointer = 0x300000000;
	return 0;
}

uint64_t few_counted(const char *name)
{
	for (int i = 0; counted[i].name[0]; i++)
		for (int c = 0; counted[i].name[c] == name[c]; c++)
			if (!name[c])
				return counted[i].calls;
	return 0;
}
