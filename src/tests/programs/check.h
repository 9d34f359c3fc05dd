/* For the programs here: CHECK(what) ends the program with status 9, and says which program and what, if it is not so. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                                    \
	do {                                                                                           \
		if (!(what)) {                                                                         \
			fprintf(stderr, "%s: %s is not so\n", program_invocation_short_name, #what);   \
			exit(9);                                                                       \
		}                                                                                      \
	} while (0)

#endif
