# Says hello, and what it can see.
#
#     cofferdam run examples/hello.sh you

echo "hello, ${1:-world}, from $(pwd)"
echo "environment:"
env | sort
