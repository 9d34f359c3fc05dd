// earlier GO: allocates 4 MiB, prints `ready`, waits for the file GO, allocates 2 MiB, frees the first, allocates 1 MiB
// and frees it. Linked with the stand-in libraries. Out: the exit status only.
#include <stdio.h>
#include <unistd.h>

#include "../../demo/common/standin.h"
#include "../../demo/program/cuda.h"

int main(int count, char **words)
{
	void *before, *kept, *freed;
	int failed = count != 2 || cudaMalloc(&before, 4 << 20);

	puts("ready");
	fflush(stdout);
	while (!failed && access(words[1], F_OK))
		usleep(1000);
	failed |= cudaMalloc(&kept, 2 << 20);
	failed |= cudaFree(before);
	failed |= cudaMalloc(&freed, 1 << 20);
	failed |= cudaFree(freed);
	return failed;
}
