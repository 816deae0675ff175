# Starts a program of an exec: NONCE TAG DIRECTORY SCRIPT [NAME=VALUE...] -- PROGRAM [ARGUMENT...]
# Prints NONCE and a letter before anything of the program: + if it starts now, otherwise why it does not.
nonce=$1 tag=$2 directory=$3 script=$4
shift 4
no() {
	printf '%s%s' "$nonce" "$1"
	exit 125
}
environment=() path=/usr/local/bin:/usr/bin:/bin
while [ "$1" != -- ]; do
	environment+=("$1")
	case $1 in PATH=*) path=${1#PATH=} ;; esac
	shift
done
shift
# These two limits have no effect on Linux. Their sum is fixed, and they tag all processes of this exec: without privileges
# a process cannot raise a limit, and so has no way to the tag of another exec. end.sh reads the limit of locks first.
ulimit -m $(((1 << 49) - tag)) 2>/dev/null && ulimit -x "$tag" 2>/dev/null || no t
cd -- "$directory" 2>/dev/null || no d
if [ -n "$script" ]; then
	chmod 0444 -- "$script" 2>/dev/null
	[ -r "$script" ] && [ ! -w "$script" ] || no s
fi
case $1 in
*/*)
	[ -e "$1" ] || no n
	[ -f "$1" ] && [ -x "$1" ] || no x
	;;
*) PATH=$path type -P -- "$1" >/dev/null || no n ;;
esac
printf '%s+' "$nonce"
case $1 in
*=*) exec env -i "${environment[@]}" /bin/sh -c 'exec "$0" "$@"' "$@" ;;
*) exec env -i "${environment[@]}" "$@" ;;
esac
