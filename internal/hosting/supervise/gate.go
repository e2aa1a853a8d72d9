package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// wordFD and failureFD are a gate's ends of its pipes: the word comes from one, and a failure goes to the other.
	wordFD, failureFD = 3, 4
	// maxWord is more than the arguments and the environment that a kernel takes.
	maxWord = 16 << 20
	// gateClosed is the exit code of a gate that received no program, notExecuted of one that could not execute it.
	gateClosed, notExecuted = 126, 127

	stepHand, stepChdir, stepExec = "hand", "chdir", "exec"
)

// HandedFD is the descriptor at which a program has Program.Handed. It is above those that programs open and shells use
// by number at their start, and below any usual limit.
const HandedFD = 200

// word is the message to a gate: the program that it becomes. Bytes, because JSON changes strings that are not UTF-8.
type word struct {
	Argv, Env   [][]byte
	Dir, Handed []byte
}

// Gate is what a process of Options.Gate does: it waits until the supervisor that has started it sends a program, and
// becomes that program. If the supervisor ends before, or if the process was started by something else, it returns an
// exit code and has done nothing.
func Gate() int {
	// What this process has inherited is not the program's; only its pipes would be open otherwise.
	if err := closeOnExec(); err != nil {
		fmt.Fprintln(os.Stderr, "volplane: not started:", err)
		return gateClosed
	}
	w, err := hear(os.NewFile(wordFD, "word"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "volplane: not started: it is not known which program to start:", err)
		return gateClosed
	}
	failed := become(w)
	// If no process reads it, the exit code still says that the program was not executed.
	_ = json.NewEncoder(os.NewFile(failureFD, "failure")).Encode(failed)
	return notExecuted
}

// closeOnExec marks all descriptors but standard input, output and error.
func closeOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= wordFD {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// hear reads the word; an incomplete word is an error.
func hear(from *os.File) (word, error) {
	var w word
	if err := json.NewDecoder(io.LimitReader(from, maxWord)).Decode(&w); err != nil {
		return w, err
	}
	if len(w.Argv) == 0 {
		return w, errors.New("it names no program")
	}
	return w, nil
}

// become executes the program; it returns only if that fails. What a program inherits does not depend on who starts
// this process: its rights for new files are the usual ones, and it ignores no signal.
func become(w word) failure {
	const usual = 0o022
	unix.Umask(usual)
	heedSignals()
	if err := hand(string(w.Handed)); err != nil {
		return failureOf(stepHand, err)
	}
	if err := unix.Chdir(string(w.Dir)); err != nil {
		return failureOf(stepChdir, err)
	}
	return failureOf(stepExec, unix.Exec(string(w.Argv[0]), toStrings(w.Argv), toStrings(w.Env)))
}

// hand opens a directory for the program, which keeps it open whatever happens to its path.
func hand(dir string) error {
	if dir == "" {
		return nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Dup3(fd, HandedFD, 0)
}

// heedSignals gives each signal its default action. A handler ends with the execution of a program, but what a process
// ignores the program would ignore, too, and os/signal cannot change what was ignored at the start.
func heedSignals() {
	const last, setSize = 64, 8
	// A kernel's sigaction of zeros is SIG_DFL, in whatever order its fields are.
	var standard [4]uint64
	for signal := uintptr(1); signal <= last; signal++ {
		// It fails for SIGKILL and SIGSTOP, which cannot be ignored.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(&standard)), 0, setSize, 0, 0)
	}
}

func failureOf(step string, err error) failure {
	f := failure{Step: step, Errno: unix.EIO}
	errors.As(err, &f.Errno)
	return f
}

func toStrings(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}
