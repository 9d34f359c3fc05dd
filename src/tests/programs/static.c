// static [PROGRAM ARGS]: a program without a loader. Out: what it executes, or the exit status 3.
#include <unistd.h>

int main(int count, char **words)
{
	if (count > 1)
		execv(words[1], words + 1);
	return 3;
}
