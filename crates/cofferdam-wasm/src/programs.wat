(import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_close" (func $fd_close (param i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_fdstat_get" (func $fd_fdstat_get (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_filestat_get" (func $fd_filestat_get (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_open"
  (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_create_directory"
  (func $path_create_directory (param i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_symlink" (func $path_symlink (param i32 i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_rename" (func $path_rename (param i32 i32 i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "environ_get" (func $environ_get (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_raise" (func $proc_raise (param i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))

;; Four MiB: scratch memory and text in the first, buffers above.
(memory (export "memory") 64)

(func $exit (param $code i32)
  (call $proc_exit (local.get $code)))

;; Exits if a call failed.
(func $check (param $errno i32)
  (if (local.get $errno) (then (call $exit (i32.const 1)))))

;; Reads or writes one buffer once. The number of bytes is at 8.
(func $buffer (param $at i32) (param $length i32)
  (i32.store (i32.const 0) (local.get $at))
  (i32.store (i32.const 4) (local.get $length)))

(func $write (param $fd i32) (param $at i32) (param $length i32)
  (block $done
    (loop $more
      (br_if $done (i32.eqz (local.get $length)))
      (call $buffer (local.get $at) (local.get $length))
      (call $check (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $at (i32.add (local.get $at) (i32.load (i32.const 8))))
      (local.set $length (i32.sub (local.get $length) (i32.load (i32.const 8))))
      (br $more))))

;; Copies until end-of-file, or discards the bytes if $to is -1. Returns the number of bytes.
(func $copy (param $from i32) (param $to i32) (result i64) (local $total i64)
  (block $done
    (loop $more
      (call $buffer (i32.const 0x100000) (i32.const 65536))
      (call $check (call $fd_read (local.get $from) (i32.const 0) (i32.const 1) (i32.const 8)))
      (br_if $done (i32.eqz (i32.load (i32.const 8))))
      (local.set $total (i64.add (local.get $total) (i64.load32_u (i32.const 8))))
      (if (i32.ne (local.get $to) (i32.const -1))
        (then (call $write (local.get $to) (i32.const 0x100000) (i32.load (i32.const 8)))))
      (br $more)))
  (local.get $total))

(func $read_line
  (block $done
    (loop $more
      (call $buffer (i32.const 0x100000) (i32.const 1))
      (call $check (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
      (br_if $done (i32.eqz (i32.load (i32.const 8))))
      (br_if $done (i32.eq (i32.load8_u (i32.const 0x100000)) (i32.const 10)))
      (br $more))))

;; Writes digits that end before $end. Returns the address of the first one.
(func $digits (param $number i64) (param $end i32) (result i32)
  (loop $more
    (local.set $end (i32.sub (local.get $end) (i32.const 1)))
    (i32.store8 (local.get $end)
      (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_u (local.get $number) (i64.const 10)))))
    (local.set $number (i64.div_u (local.get $number) (i64.const 10)))
    (br_if $more (i64.ne (local.get $number) (i64.const 0))))
  (local.get $end))

(func $print_number (param $number i64) (local $at i32)
  (local.set $at (call $digits (local.get $number) (i32.const 128)))
  (call $write (i32.const 1) (local.get $at) (i32.sub (i32.const 128) (local.get $at))))

(func $numbered (param $fd i32) (param $letter i32) (param $number i32) (local $at i32)
  (i32.store8 (i32.const 127) (i32.const 10))
  (local.set $at (i32.sub (call $digits (i64.extend_i32_u (local.get $number)) (i32.const 127)) (i32.const 1)))
  (i32.store8 (local.get $at) (local.get $letter))
  (call $write (local.get $fd) (local.get $at) (i32.sub (i32.const 128) (local.get $at))))

(func $print_numbered (param $count i32) (local $number i32)
  (block $done
    (loop $more
      (br_if $done (i32.ge_u (local.get $number) (local.get $count)))
      (local.set $number (i32.add (local.get $number) (i32.const 1)))
      (call $numbered (i32.const 1) (i32.const 111) (local.get $number))
      (call $numbered (i32.const 2) (i32.const 101) (local.get $number))
      (br $more))))

(func $repeat (param $at i32) (param $length i32) (param $total i64)
  (block $done
    (loop $more
      (br_if $done (i64.eqz (local.get $total)))
      (if (i64.lt_u (local.get $total) (i64.extend_i32_u (local.get $length)))
        (then (local.set $length (i32.wrap_i64 (local.get $total)))))
      (call $write (i32.const 1) (local.get $at) (local.get $length))
      (local.set $total (i64.sub (local.get $total) (i64.extend_i32_u (local.get $length))))
      (br $more))))

;; Reads the variables to 1 MiB, and their pointers to 2 MiB. Returns the number of bytes.
(func $environment (result i32)
  (call $check (call $environ_sizes_get (i32.const 16) (i32.const 20)))
  (call $check (call $environ_get (i32.const 0x200000) (i32.const 0x100000)))
  (i32.load (i32.const 20)))

(func $print_environment
  (call $write (i32.const 1) (i32.const 0x100000) (call $environment)))

(func $print_working_dir (local $number i32) (local $at i32) (local $end i32)
  (drop (call $environment))
  (block $done
    (loop $more
      (br_if $done (i32.ge_u (local.get $number) (i32.load (i32.const 16))))
      (local.set $at
        (i32.load (i32.add (i32.const 0x200000) (i32.mul (local.get $number) (i32.const 4)))))
      (local.set $number (i32.add (local.get $number) (i32.const 1)))
      ;; "PWD="
      (br_if $more (i32.ne (i32.load (local.get $at)) (i32.const 0x3d445750)))
      (local.set $at (i32.add (local.get $at) (i32.const 4)))
      (local.set $end (local.get $at))
      (loop $longer
        (if (i32.load8_u (local.get $end))
          (then (local.set $end (i32.add (local.get $end) (i32.const 1))) (br $longer))))
      (call $write (i32.const 1) (local.get $at) (i32.sub (local.get $end) (local.get $at))))))

;; Sleeps 1000 s of the monotonic clock, with the subscription at 256 and its event at 320.
(func $sleep
  (i64.store (i32.const 256) (i64.const 0))
  (i32.store8 (i32.const 264) (i32.const 0))
  (i32.store (i32.const 272) (i32.const 1))
  (i64.store (i32.const 280) (i64.const 1000000000000))
  (i64.store (i32.const 288) (i64.const 0))
  (i64.store (i32.const 296) (i64.const 0))
  (call $check (call $poll_oneoff (i32.const 256) (i32.const 320) (i32.const 1) (i32.const 8))))

;; Creates or truncates a file. Returns its descriptor.
(func $create (param $fd i32) (param $path i32) (param $length i32) (result i32)
  (call $check (call $path_open (local.get $fd) (i32.const 1) (local.get $path) (local.get $length)
    (i32.const 9) (i64.const 0x200040) (i64.const 0) (i32.const 0) (i32.const 12)))
  (i32.load (i32.const 12)))

(func $open (param $fd i32) (param $path i32) (param $length i32) (result i32)
  (call $check (call $path_open (local.get $fd) (i32.const 1) (local.get $path) (local.get $length)
    (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 12)))
  (i32.load (i32.const 12)))

;; Creates files whose names are $path and a number.
(func $make_files (param $fd i32) (param $path i32) (param $length i32) (param $count i32)
  (local $number i32) (local $at i32) (local $file i32)
  (block $done
    (loop $more
      (br_if $done (i32.ge_u (local.get $number) (local.get $count)))
      (memory.copy (i32.const 0x100000) (local.get $path) (local.get $length))
      (local.set $at (call $digits (i64.extend_i32_u (local.get $number)) (i32.const 128)))
      (memory.copy (i32.add (i32.const 0x100000) (local.get $length)) (local.get $at)
        (i32.sub (i32.const 128) (local.get $at)))
      (local.set $file (call $create (local.get $fd) (i32.const 0x100000)
        (i32.add (local.get $length) (i32.sub (i32.const 128) (local.get $at)))))
      (call $check (call $fd_close (local.get $file)))
      (local.set $number (i32.add (local.get $number) (i32.const 1)))
      (br $more))))

;; Writes until all is written or a write fails. Returns the size of the file.
(func $fill (param $fd i32) (param $path i32) (param $length i32) (param $bytes i64) (result i64)
  (local $file i32) (local $piece i32)
  (local.set $file (call $create (local.get $fd) (local.get $path) (local.get $length)))
  (block $done
    (loop $more
      (br_if $done (i64.eqz (local.get $bytes)))
      (local.set $piece (i32.const 65536))
      (if (i64.lt_u (local.get $bytes) (i64.const 65536))
        (then (local.set $piece (i32.wrap_i64 (local.get $bytes)))))
      (call $buffer (i32.const 0x300000) (local.get $piece))
      (br_if $done (call $fd_write (local.get $file) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $bytes (i64.sub (local.get $bytes) (i64.load32_u (i32.const 8))))
      (br $more)))
  (call $check (call $fd_filestat_get (local.get $file) (i32.const 512)))
  (i64.load (i32.const 544)))

;; Writes to every page of the last $pages.
(func $touch (param $pages i32) (local $at i32) (local $end i32)
  (local.set $end (i32.mul (memory.size) (i32.const 65536)))
  (local.set $at (i32.sub (local.get $end) (i32.mul (local.get $pages) (i32.const 65536))))
  (loop $more
    (i32.store8 (local.get $at) (i32.const 1))
    (local.set $at (i32.add (local.get $at) (i32.const 4096)))
    (br_if $more (i32.lt_u (local.get $at) (local.get $end)))))

;; Returns 1 if the descriptor is a character device, as C libraries check it.
(func $is_tty (param $fd i32) (result i32)
  (call $check (call $fd_fdstat_get (local.get $fd) (i32.const 512)))
  (i32.eq (i32.load8_u (i32.const 512)) (i32.const 2)))
