// hang SECONDS DEADLINE: waits for work of so many seconds, in cudaDeviceSynchronize; at the deadline SIGALRM ends it.
// Linked with the stand-in libraries. Out: the exit status only.
#include <stdlib.h>
#include <unistd.h>

#include "../../demo/common/standin.h"
#include "../../demo/program/cuda.h"

static void work(void *seconds)
{
	sleep(*(unsigned *)seconds);
}

int main(int count, char **words)
{
	unsigned seconds = count == 3 ? atoi(words[1]) : 0;

	if (!seconds)
		return 2;
	alarm(atoi(words[2]));
	return cudaLaunchHostFunc(NULL, work, &seconds) || cudaDeviceSynchronize();
}
