# Operations on paths of the workspace. Exits with 40 and above for a refusal, and then prints the reason.
umask 022
workspace=/workspace
missing=40 escape=41 conflict=42 denied=43
refuse() {
	printf '%s' "$2"
	exit "$1"
}

# Sets `real` to where a path leads. Links are followed inside the workspace only. Missing parts are taken as they are.
resolve() {
	local rest=$1 at='' part target links=0
	while [ -n "$rest" ]; do
		part=${rest%%/*}
		if [ "$part" = "$rest" ]; then rest=''; else rest=${rest#*/}; fi
		case $part in
		'' | .) ;;
		..) at=${at%/*} ;;
		*)
			if [ -L "$at/$part" ]; then
				((++links <= 40)) || refuse $conflict 'its links lead in a circle'
				target=$(readlink -n -- "$at/$part"; printf x)
				target=${target%x}
				case $target in /*) at='' ;; esac
				rest=$target/$rest
			else
				at=$at/$part
			fi
			;;
		esac
	done
	real=$at
	case $real in
	"$workspace" | "$workspace"/*) ;;
	*) refuse $escape 'it leads out of the workspace' ;;
	esac
}

# Makes the parents of a path, and follows no link.
parents() {
	local rest=${1#"$workspace"/} at=$workspace
	while [[ $rest == */* ]]; do
		at=$at/${rest%%/*} rest=${rest#*/}
		[ ! -L "$at" ] || refuse $escape 'a directory on the way is a link'
		[ -d "$at" ] && continue
		[ ! -e "$at" ] || refuse $conflict 'a file is on the way'
		mkdir -- "$at" 2>/dev/null || [ -d "$at" ] || refuse $denied 'a directory on the way cannot be created'
	done
}

# Refuses to replace anything but a file or a link.
replaceable() {
	[ -L "$1" ] || [ ! -e "$1" ] || [ -f "$1" ] || refuse $conflict 'it is not a regular file'
}

operation=$1
shift
case $operation in
read)
	resolve "$1"
	[ -e "$real" ] || [ -L "$real" ] || refuse $missing 'it does not exist'
	[ -f "$real" ] || refuse $conflict 'it is not a regular file'
	[ -r "$real" ] || refuse $denied 'it cannot be read'
	printf %s "$real"
	;;
write)
	resolve "$1"
	[ "$real" != "$workspace" ] || refuse $conflict 'it is a directory'
	replaceable "$real"
	mkdir -p -- "${real%/*}" 2>/dev/null || refuse $conflict 'its directory cannot be created'
	printf %s "$real"
	;;
parents)
	parents "$1"
	replaceable "$1"
	printf %s "$1"
	;;
commit)
	# TEMPORARY PATH MODE [TIME]
	[ -d "$2" ] && [ ! -L "$2" ] && refuse $conflict 'it is a directory'
	replaceable "$2"
	chmod -- "$3" "$1" || refuse $denied 'its permissions cannot be set'
	[ -z "${4-}" ] || touch -d "@$4" -- "$1" || refuse $denied 'its time cannot be set'
	mv -fT -- "$1" "$2" 2>/dev/null || refuse $denied 'it cannot be replaced'
	;;
discard)
	rm -f -- "$1"
	;;
directory)
	parents "$1"
	[ ! -L "$1" ] || refuse $conflict 'it is a link'
	[ ! -e "$1" ] || [ -d "$1" ] || refuse $conflict 'it is not a directory'
	[ -d "$1" ] || mkdir -- "$1" 2>/dev/null || refuse $denied 'it cannot be created'
	chmod -- "$2" "$1" || refuse $denied 'its permissions cannot be set'
	;;
link)
	# PATH TARGET TEMPORARY
	parents "$1"
	replaceable "$1"
	ln -sT -- "$2" "$3" 2>/dev/null || refuse $denied 'it cannot be created'
	mv -fT -- "$3" "$1" 2>/dev/null || { rm -f -- "$3"; refuse $denied 'it cannot be replaced'; }
	;;
list)
	resolve "$1"
	[ -e "$real" ] || refuse $missing 'it does not exist'
	[ -d "$real" ] || refuse $conflict 'it is not a directory'
	[ -r "$real" ] && [ -x "$real" ] || refuse $denied 'it cannot be listed'
	find "$real" -mindepth 1 -maxdepth 1 -printf '%f\0%y\0%s\0%m\0%T@\0%l\0' | head -z -n "$2"
	;;
rename)
	resolve "${1%/*}"
	[ ! -e "$real" ] || [ -d "$real" ] || refuse $conflict 'a file is on the way'
	source=$real/${1##*/}
	[ -e "$source" ] || [ -L "$source" ] || refuse $missing 'it does not exist'
	resolve "${2%/*}"
	target=$real/${2##*/}
	[ -e "$real" ] || refuse $missing 'the directory of the new name does not exist'
	[ -d "$real" ] || refuse $conflict 'a file is on the way'
	if [ -d "$source" ] && [ ! -L "$source" ]; then
		if [ -e "$target" ] || [ -L "$target" ]; then
			[ -d "$target" ] && [ ! -L "$target" ] || refuse $conflict 'a directory cannot replace a file'
		fi
	elif [ -d "$target" ] && [ ! -L "$target" ]; then
		refuse $conflict 'a file cannot replace a directory'
	fi
	[ ! "$source" -ef "$target" ] || [ -L "$source" ] || [ -L "$target" ] || exit 0
	mv -fT -- "$source" "$target" 2>/dev/null || refuse $conflict 'it cannot be moved there'
	;;
remove)
	resolve "${1%/*}"
	target=$real/${1##*/}
	[ -e "$target" ] || [ -L "$target" ] || refuse $missing 'it does not exist'
	rm -rf -- "$target" 2>/dev/null || refuse $denied 'it cannot be removed'
	;;
*) refuse $conflict 'the operation is unknown' ;;
esac
exit 0
