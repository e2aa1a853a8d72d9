package supervise

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// failure is what a gate says when it cannot become the program.
type failure struct {
	// Step is "hand", "chdir" or "exec".
	Step  string
	Errno unix.Errno
}

// cause says in words why a program could not be executed, and what can be done about it.
func cause(p *Program, f failure) string {
	path := p.Argv[0]
	switch f.Step {
	case stepHand:
		return fmt.Sprintf("the directory %s cannot be given to it: %s", p.Handed, f.Errno.Error())
	case stepChdir:
		return fmt.Sprintf("the working directory %s cannot be entered: %s", p.dir(), f.Errno.Error())
	}
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Sprintf("%s cannot be found: %s", path, reasonOf(err))
	}
	words := ""
	switch f.Errno {
	case unix.ENOENT:
		words = causeOfMissing(path)
	case unix.EACCES:
		words = causeOfDenied(path, st.Mode())
	case unix.ENOEXEC:
		words = causeOfFormat(path)
	case unix.ETXTBSY:
		words = path + " is being written"
	case unix.E2BIG:
		words = "the arguments and the environment are too long"
	}
	if words == "" {
		words = fmt.Sprintf("%s cannot be executed: %s", path, f.Errno.Error())
	}
	return words
}

// reasonOf returns an error without the path in it.
func reasonOf(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// causeOfMissing: the file exists, so what the kernel has not found is its interpreter or loader.
func causeOfMissing(path string) string {
	if i := interpreterOf(path); i.path != "" {
		if i.carriageReturn {
			return fmt.Sprintf(`the first line of %s ends with a carriage return: sed -i 's/\r$//' %s`, path, path)
		}
		return fmt.Sprintf("the interpreter %q of %s does not exist", i.path, path)
	}
	if loader := loaderOf(path); loader != "" {
		return fmt.Sprintf("the loader %q of %s does not exist: the program was built for another C library", loader, path)
	}
	return ""
}

func causeOfDenied(path string, mode os.FileMode) string {
	const execute = 0o111
	switch {
	case mode.IsDir():
		return path + " is a directory"
	case !mode.IsRegular():
		return path + " is not a regular file"
	case mode&execute == 0:
		return fmt.Sprintf("%s is not executable: chmod +x %s", path, path)
	}
	interpreter := interpreterOf(path).path
	if st, err := os.Stat(interpreter); err == nil && (st.Mode()&execute == 0 || !st.Mode().IsRegular()) {
		return fmt.Sprintf("the interpreter %q of %s is not executable", interpreter, path)
	}
	for _, path := range []string{path, interpreter} {
		var fs unix.Statfs_t
		if path != "" && unix.Statfs(path, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0 {
			return fmt.Sprintf("%s is on a file system that is mounted noexec", path)
		}
	}
	return ""
}

func causeOfFormat(path string) string {
	head, err := headOf(path)
	switch {
	case err != nil:
		return ""
	case len(head) == 0:
		return path + " is empty"
	case strings.HasPrefix(string(head), elf.ELFMAG):
		return path + " was built for another machine than " + runtime.GOARCH
	case strings.HasPrefix(string(head), "#!"):
		return path + " names no interpreter in its first line"
	}
	return fmt.Sprintf("%s is neither a binary nor a script with #! in its first line", path)
}

// loaderOf returns the path of the dynamic loader that a binary names.
func loaderOf(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		const most = 256
		name, err := io.ReadAll(io.LimitReader(p.Open(), most))
		if err != nil {
			return ""
		}
		return strings.TrimRight(string(name), "\x00")
	}
	return ""
}

// placesOf returns the directories in which a change may let a program start that could not: its own, and the nearest
// one that exists if that does not.
func placesOf(path string) []string {
	places := []string{path}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		places = append(places, real, filepath.Dir(real))
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return append(places, dir)
		}
	}
}
