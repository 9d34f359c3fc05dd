# A machine that sleeps while it is recorded: the kernel's own test of a suspend, in which everything but the power goes
# off for some seconds. What we share with the computer around us does not come back from it, the console does; so what
# is to be known without it is left before, and the machine is switched off here.
cat > /tmp/sleep << 'END'
exec > /dev/ttyS0 2>&1
echo core > /sys/power/pm_test
gpurec -o /tmp/t.jsonl --only 'cuMem*' -- sh -c './program --loops 1; echo mem > /sys/power/state; ./program --loops 1' > /tmp/t.txt 2>&1
echo "STATUS $?"
grep '"type":"suspend"' /tmp/t.jsonl | sed 's/^/LINE /'
sed -n '/The machine slept/,/^$/s/^/SAID /p' /tmp/t.txt
gpurec summary /tmp/t.jsonl | sed -n '/The machine slept/,/^$/s/^/READ /p'
tail -n 1 /tmp/t.jsonl | grep -o '"complete":[a-z]*' | head -n 1
echo FINISHED
reboot -f
END
dmesg > /host/out/dmesg.txt
echo 0 > /host/status
sync
exec sh /tmp/sleep
