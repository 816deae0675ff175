#!/bin/bash
# Stands in the jailer's place, and does what the jailer's description says: checks its arguments, closes what it was not
# given to keep, makes a root, walls itself into it, and becomes Firecracker as an ordinary user, in processes of its own.
# Of its own it brings into the root what the program in Firecracker's place needs, which is linked with libraries.
set -u
fail() { echo "jailer: $1" >&2; exit 1; }

# The second half, in a mount namespace of its own.
if [ "${1-}" = --inside ]; then
    root=$2 name=$3 id=$4 uid=$5 gid=$6; shift 6
    mount --rbind "$root" "$root" && cd "$root" || fail "it cannot bind its root"
    for place in bin lib lib64 usr @LIBRARY@; do
        if [ -L "/$place" ]; then cp -P "/$place" . || fail "/$place"
        elif [ -d "/$place" ]; then
            mkdir -p "./$place" && mount --rbind -o ro "/$place" "./$place" || fail "it cannot bind /$place"
        fi
    done
    mkdir old_root && pivot_root . old_root && cd / || fail "it cannot change its root"
    # umount2 with MNT_DETACH: the program for that wants to read what is not in the new root.
    chroot /old_root perl -e '$root = "/"; exit(syscall(166, $root, 2) != 0)' && rmdir /old_root || fail "it cannot leave the old root"
    for directory in / /dev /dev/net /run; do
        mkdir -p "$directory" && chmod 700 "$directory" && chown "$uid:$gid" "$directory" || fail "$directory"
    done
    umask 177
    mknod /dev/net/tun c 10 200 && mknod /dev/kvm c 10 232 && mknod /dev/urandom c 1 9 || fail "mknod"
    chown "$uid:$gid" /dev/net/tun /dev/kvm /dev/urandom || fail "chown"
    @FAULT@
    become=(setpriv --reuid "$uid" --regid "$gid" --clear-groups "/$name" --id "$id" --start-time-us 1
        --start-time-cpu-us 0 --parent-cpu-time-us 1 "$@")
    # The first child is the first process of its namespace. It is not waited for.
    exec unshare --pid /bin/bash -c 'set -C; pid=$1; shift; "$@" <&0 & echo -n "$!" > "$pid"' - "/$name.pid" "${become[@]}"
fi

[ "${1-}" = --version ] && { echo "Jailer v@VERSION@"; exit; }
[ "$(id -u)" = 0 ] || fail "only root can jail"
id='' exec='' uid='' gid='' base=/srv/jailer new='' limits=()
while [ $# -gt 0 ]; do
    case "$1" in
        --id) id=$2; shift 2;;
        --exec-file) exec=$(realpath "$2") || fail "no $2"; shift 2;;
        --uid) uid=$2; shift 2;;
        --gid) gid=$2; shift 2;;
        --chroot-base-dir) base=$(realpath "$2") || fail "no $2"; shift 2;;
        --resource-limit)
            case "$2" in
                fsize=*) limits+=("--fsize=${2#*=}");;
                no-file=*) limits+=("--nofile=${2#*=}");;
                *) fail "what is the limit $2?";;
            esac
            shift 2;;
        --new-pid-ns) new=1; shift;;
        --) shift; break;;
        *) fail "what is '$1'?";;
    esac
done
[[ $id =~ ^[a-zA-Z0-9-]{1,64}$ ]] || fail "'$id' is no name"
[[ $uid =~ ^[0-9]+$ && $gid =~ ^[0-9]+$ ]] || fail "no user"
[ -f "$exec" ] && [[ ${exec##*/} == *firecracker* ]] || fail "'$exec' is no Firecracker"
[ -d "$base" ] || fail "'$base' is no directory"
[ -n "$new" ] || fail "this one knows only processes of their own"
for number in /proc/self/fd/*; do
    number=${number##*/}
    [ "$number" -gt 2 ] && [ "$number" -ne 255 ] && eval "exec $number>&-"
done
name=${exec##*/} root=$base/${exec##*/}/$id/root
mkdir -p "$root" || fail "$root"
[ ! -e "$root/$name" ] && [ ! -L "$root/$name" ] || fail "something stands in the program's place"
cp "$exec" "$root/$name" && chown "$uid:$gid" "$root/$name" || fail "it cannot copy $exec"
[ ${#limits[@]} -gt 0 ] || limits=(--nofile=2048)
prlimit --pid $$ "${limits[@]}" || fail "limits"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin unshare --mount --propagation slave \
    /bin/bash "$0" --inside "$root" "$name" "$id" "$uid" "$gid" "$@"
