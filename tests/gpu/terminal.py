"""terminal.py FD COMMAND...: runs a command in the foreground of the terminal that is its standard input, as a shell
does. In: a descriptor to write to. Out: two lines there: the PID of the command, and its exit status (negative: a
signal).

It stays until the terminal is gone: when the leader of a session ends, Linux sends SIGHUP to the processes there.
"""

import fcntl
import os
import signal
import sys
import termios


def main():
    channel, command = int(sys.argv[1]), sys.argv[2:]
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    pid = os.fork()
    if not pid:
        os.close(channel)
        os.execvp(command[0], command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(channel, f"{pid}\n".encode())
    # What the command prints ends when the command does.
    os.close(1)
    os.close(2)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(channel, f"{status}\n".encode())
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
