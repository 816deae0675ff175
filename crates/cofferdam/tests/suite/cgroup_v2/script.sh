# Runs in the guest: Cofferdam in control groups that are arranged like those of hosts. Prints, for each case,
# "@@case NAME", standard output, "@@errors", standard error, "@@groups", all groups but systemd's and the processes in them that this
# script started before, "@@exit STATUS".

PATH=/run/v2:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
HOME=/nonexistent
export PATH HOME
TOP=/sys/fs/cgroup
USER_ID=65533
WITNESSES=

# Becomes a command in a group, or in the leaf that Cofferdam made of it, as a user.
become() {
    group=$TOP$1
    user=$2
    shift 2
    if [ -d "$group/cofferdam-callers" ]; then group=$group/cofferdam-callers; fi
    if [ "$user" != 0 ]; then set -- setpriv --reuid "$user" --regid "$user" --clear-groups -- "$@"; fi
    exec sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@"
}

# Every group below one, what it passes on, and which of the witnesses are in it.
groups() {
    for group in "$1"/*/; do
        [ -d "$group" ] || continue
        group=${group%/}
        inside=
        for pid in $(cat "$group/cgroup.procs" 2> /dev/null); do
            case " $WITNESSES " in *" $pid "*) inside="$inside witness" ;; *) inside="$inside other" ;; esac
        done
        echo "${group#"$TOP"}:$(cat "$group/cgroup.subtree_control" 2> /dev/null):${inside# }"
        groups "$group"
    done
}

# case NAME GROUP USER COMMAND...
case_() {
    name=$1
    shift
    echo "@@case $name"
    (become "$@") > /tmp/output 2> /tmp/errors
    status=$?
    cat /tmp/output
    echo "@@errors"
    cat /tmp/errors
    echo "@@groups"
    groups "$TOP"
    echo "@@exit $status"
}

# Something that is in a group, and that Cofferdam neither started nor was started by.
witness() {
    (echo 0 > "$TOP$1/cgroup.procs"; exec sleep 100000) &
    WITNESSES="$WITNESSES $!"
    until [ "$(cat /proc/$!/cgroup)" = "0::$1" ]; do sleep 0.05; done
}

# A group with what a user needs to arrange groups below it; marked as systemd marks what it delegates.
delegated() {
    mkdir "$TOP$1"
    chown "$2:$2" "$TOP$1" "$TOP$1/cgroup.procs" "$TOP$1/cgroup.subtree_control" "$TOP$1/cgroup.threads"
    python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.delegate", b"1")' "$TOP$1"
}

# Every limit, under the prefix of an environment.
limits() {
    run="cofferdam run --json"
    case_ "$1 posture" "$2" "$3" $run --memory 64M --pids 20 --cpus 0.5 -- true
    case_ "$1 doctor" "$2" "$3" cofferdam doctor --json --backend process
    case_ "$1 memory" "$2" "$3" $run --memory 64M -- memory_bomb private 64 1
    case_ "$1 memory of a process" "$2" "$3" $run --memory 64M -- python3 -c 'x = bytearray(300 << 20)'
    case_ "$1 memory of a child" "$2" "$3" $run --memory 64M -- sh -c 'python3 -c "x = bytearray(300 << 20)"; echo after'
    case_ "$1 memory of files" "$2" "$3" $run --memory 64M --disk none -- memory_bomb file 64 1 /workspace
    case_ "$1 stored files" "$2" "$3" $run --memory 64M --disk 256M -- \
        python3 -c 'f = open("x", "wb"); [f.write(bytes(1 << 20)) for _ in range(200)]; print(f.tell() >> 20)'
    case_ "$1 disk" "$2" "$3" $run --memory 64M --disk 32M -- disk_bomb write 32 /workspace /tmp /dev/shm
    case_ "$1 pids" "$2" "$3" $run --pids 20 -- fork_bomb 20
    case_ "$1 cpu time" "$2" "$3" $run --cpu-time 2s -- cpu_bomb many 2
    case_ "$1 cpus" "$2" "$3" $run --cpus 0.2 -- python3 -c '
import time
begin, used = time.monotonic(), time.process_time()
while time.monotonic() - begin < 3: pass
print((time.process_time() - used) / (time.monotonic() - begin))'
}

# Memory in the kernel's own objects: ten times the limit.
objects() {
    for form in "zero-device 1" "semaphores 1" "messages 1" "page-tables 8" "mappings 8" "unix-queue 1" "in-flight 1" \
        "unix-datagrams 1" "udp-datagrams 4" "connections 1" "corked 8" "watchers 8" "lock-table 1" "filters 8" \
        "spliced-pages 1" "sent-pages 1" "memberships 8" "names 1" "read-only 8" "hidden 8" "pipes 8" "locks 16" \
        "open-file-locks 16" "netlink 8" "tcp-queue 8" "events 8" "closed 8" "socket-filters 8" "socket-options 36" \
        "access-lists 8" "flock 16" "landlock 8" "host-files 8"; do
        # This kernel is emulated: some forms take much more CPU time than elsewhere.
        case_ "$1 object ${form% *}" "$2" "$3" measure cofferdam run --json --memory 64M --disk 512M --pids 40 \
            --cpu-time 300s --timeout 150s -- kernel_memory "${form% *}" 640 "${form#* }" 400
    done
}

# The same while a sandbox is alive, whose group appears in the group PLACE. With a fifth argument, something tries to take a
# controller from the groups there, as systemd may.
# Arguments: name, group, user, PLACE.
alive() {
    echo "@@case $1"
    (become "$2" "$3" cofferdam run --memory 64M -- sleep 1000) > /tmp/output 2> /tmp/errors &
    supervisor=$!
    tries=0
    until [ "$tries" = 600 ] || cat "$TOP$4"/cofferdam-*-*/cgroup.procs "$TOP$4"/cofferdam-*-*/s1/cgroup.procs 2> /dev/null | read -r _; do
        sleep 0.1
        tries=$((tries + 1))
    done
    if [ "$#" = 5 ] && echo "-memory" 2> /dev/null > "$TOP$4/cgroup.subtree_control"; then
        echo taken
    else
        echo refused
    fi
    echo "@@errors"
    echo "@@groups"
    groups "$TOP"
    kill "$supervisor" 2> /dev/null
    wait "$supervisor" 2> /dev/null
    echo "@@exit $?"
}

echo "+memory +pids +cpu" > "$TOP/cgroup.subtree_control"

# A host without systemd.
limits root "" 0
objects root "" 0
report='
import os
limits = [line.split()[-2:] for line in open("/proc/self/limits") if "priority" in line]
print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), *sum(limits, []))'
case_ "root with raised priorities" "" 0 prlimit --rtprio=50:50 --nice=40:40 chrt --fifo 10 \
    sh -c 'python3 -c "$0" && cofferdam run -- python3 -c "$0"' "$report"
mkdir "$TOP/free" "$TOP/free/job"
witness /free/job
case_ "free among others" /free/job 0 cofferdam run --json -- true
echo 128M > "$TOP/free/job/memory.max"
case_ "bounded among others" /free/job 0 cofferdam run --json -- true
case_ "bounded among others doctor" /free/job 0 cofferdam doctor --json --backend process
mkdir "$TOP/alone"
echo 128M > "$TOP/alone/memory.max"
case_ "bounded alone" /alone 0 sh -c 'cofferdam run --json -- true && cofferdam run --json -- true; cat /proc/self/cgroup'
alive "bounded alone alive" /alone 0 /alone

# A host with systemd.
mkdir "$TOP/init.scope" "$TOP/user.slice" "$TOP/user.slice/session.scope"
echo "+memory +pids" > "$TOP/user.slice/cgroup.subtree_control"
witness /user.slice/session.scope
case_ "session of root" /user.slice/session.scope 0 cofferdam run --json -- true
alive "session of root alive" /user.slice/session.scope 0 /user.slice take
case_ "session of root doctor" /user.slice/session.scope 0 cofferdam doctor --json --backend process
case_ "session of a user" /user.slice/session.scope $USER_ID cofferdam run --json --memory 64M -- true
case_ "session of a user doctor" /user.slice/session.scope $USER_ID cofferdam doctor --json --backend process
# This kernel hides the setting for the length of queues from users.
case_ "session of a user queue" /user.slice/session.scope $USER_ID cofferdam run -- python3 -c '
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("/tmp/listener")
listener.listen(4096)
waiting = []
try:
    while len(waiting) < 200:
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].setblocking(False)
        waiting[-1].connect("/tmp/listener")
except BlockingIOError:
    pass
listener.accept()
print(len(waiting) - 1)'
echo 100 > "$TOP/user.slice/session.scope/pids.max"
case_ "bounded session of root" /user.slice/session.scope 0 cofferdam run --json -- true
echo "+memory +pids +cpu" > "$TOP/user.slice/cgroup.subtree_control"
delegated /user.slice/unit.scope $USER_ID
limits delegated /user.slice/unit.scope $USER_ID
objects delegated /user.slice/unit.scope $USER_ID
alive "delegated alive" /user.slice/unit.scope $USER_ID /user.slice/unit.scope
delegated /user.slice/shared.scope $USER_ID
witness /user.slice/shared.scope
case_ "delegated among others" /user.slice/shared.scope $USER_ID cofferdam run --json -- true
case_ "delegated among others doctor" /user.slice/shared.scope $USER_ID cofferdam doctor --json --backend process
delegated /user.slice/service $USER_ID
mkdir "$TOP/user.slice/service/callers"
chown $USER_ID "$TOP/user.slice/service/callers" "$TOP/user.slice/service/callers/cgroup.procs"
witness /user.slice/service/callers
case_ "delegated with a subgroup" /user.slice/service/callers $USER_ID cofferdam run --json -- true
delegated /user.slice/manager $USER_ID
mkdir "$TOP/user.slice/manager/init.scope" "$TOP/user.slice/manager/app"
chown -R $USER_ID "$TOP/user.slice/manager"
case_ "below the systemd of a user" /user.slice/manager/app $USER_ID cofferdam run --json -- true
