// A libcuda of two functions, one inside the other: the kernel emulates the first instruction of the outer one (push, on
// x86-64), and single-steps that of the inner one.
int cuInit(unsigned int flags);

int cuDriverGetVersion(int *version)
{
	int status;

#ifdef __x86_64__
	__asm__ volatile("" ::: "rbx"); /* which is pushed then */
#endif
	*version = 13000;
	status = cuInit(0);
	__asm__ volatile("" ::: "memory"); /* no jump */
	return status;
}

int cuInit(unsigned int flags)
{
	(void)flags;
	return 0;
}
