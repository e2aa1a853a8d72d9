package mount8

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	decide "volplane.dev/volplane/internal/decide/mount"
)

// The names by which mount(8) and umount(8) call their helpers.
const (
	MountProgram  = "mount.volplane"
	UmountProgram = "umount.volplane"
)

// Timeout is how long a call waits by default: systemd ends one of its own after 90 s.
const Timeout = 85 * time.Second

// ErrUsage says that a call is wrong, whatever the state of the host.
var ErrUsage = errors.New("wrong use")

// Call is a call of a helper.
type Call struct {
	// Umount says that something is to be unmounted: only Dir, Fake, Lazy and Force are set.
	Umount bool
	// Namespace is empty if the caller has not named one.
	Namespace, Claim, Dir string
	// Fake does nothing, Lazy returns before it is unmounted, Force unmounts a filesystem that does not answer.
	Fake, Lazy, Force bool
	Timeout           time.Duration
	Kubeconfig, Node  string
	Options           decide.BindOptions
	// Create says that a missing claim is made, with a size and perhaps of a class.
	Create bool
	Size   resource.Quantity
	Class  string
}

// Parse reads the arguments with which mount(8) or umount(8) calls the program. cwd is the directory in which it was
// called.
func Parse(program, cwd string, args []string) (Call, error) {
	c := Call{Umount: program == UmountProgram, Timeout: Timeout}
	w, err := split(args)
	if err != nil {
		return Call{}, err
	}
	c.Fake, c.Lazy, c.Force = w.has('f') && !c.Umount, w.has('l'), w.has('f') && c.Umount
	switch {
	case w.values['N'] != "":
		return Call{}, fmt.Errorf("%w: -N: volumes are mounted in the namespace of the node agent only", ErrUsage)
	case c.Umount && len(w.operands) == 1:
		c.Dir = w.operands[0]
		return c, nil
	case c.Umount:
		return Call{}, fmt.Errorf("%w: %s DIR", ErrUsage, UmountProgram)
	case len(w.operands) != 2:
		return Call{}, fmt.Errorf("%w: mount -t volplane CLAIM DIR", ErrUsage)
	case w.values['t'] != "" && w.values['t'] != "volplane":
		return Call{}, fmt.Errorf("%w: -t %.80s: the type is volplane, and the class of a claim has that of its filesystem",
			ErrUsage, w.values['t'])
	}
	c.Dir = w.operands[1]
	if c.Namespace, c.Claim, err = claimOf(w.operands[0], cwd); err != nil {
		return Call{}, err
	}
	return c, c.read(w.values['o'], w.has('s'))
}

// claimOf returns the parts of CLAIM or NAMESPACE/CLAIM. If there is a file of that name in cwd, mount(8) has taken it
// for that file, and passes on its path.
func claimOf(spec, cwd string) (ns, claim string, err error) {
	spec = strings.TrimPrefix(spec, strings.TrimSuffix(cwd, "/")+"/")
	ns, claim, named := strings.Cut(spec, "/")
	if !named {
		ns, claim = "", spec
	}
	if claim == "" || named && ns == "" || strings.Contains(claim, "/") {
		return "", "", fmt.Errorf("%w: %.200q is not CLAIM or NAMESPACE/CLAIM", ErrUsage, spec)
	}
	return ns, claim, nil
}

// words are arguments, as getopt(3) sorts them.
type words struct {
	flags    []rune
	values   map[rune]string
	operands []string
}

func (w words) has(flag rune) bool { return slices.Contains(w.flags, flag) }

// split sorts arguments. Options may stand behind operands, and values directly behind their letters.
func split(args []string) (words, error) {
	w := words{values: map[rune]string{}}
	for i := 0; i < len(args); i++ {
		letters, isOption := strings.CutPrefix(args[i], "-")
		switch {
		case args[i] == "--":
			w.operands = append(w.operands, args[i+1:]...)
			return w, nil
		case !isOption || letters == "":
			w.operands = append(w.operands, args[i])
			continue
		}
		wants, err := w.letters(letters)
		if err != nil {
			return words{}, err
		}
		if wants == 0 {
			continue
		}
		if i++; i == len(args) {
			return words{}, fmt.Errorf("%w: -%c has no value", ErrUsage, wants)
		}
		w.set(wants, args[i])
	}
	return w, nil
}

// letters takes one argument of options, and returns the one whose value is the next argument, or 0.
func (w *words) letters(letters string) (wants rune, err error) {
	for at, letter := range letters {
		switch {
		case strings.ContainsRune("oNt", letter) && at+1 < len(letters):
			w.set(letter, letters[at+1:])
			return 0, nil
		case strings.ContainsRune("oNt", letter):
			return letter, nil
		case strings.ContainsRune("sfnvwlrcid", letter):
			w.flags = append(w.flags, letter)
		default:
			return 0, fmt.Errorf("%w: unknown option -%c", ErrUsage, letter)
		}
	}
	return 0, nil
}

// set keeps a value; more options of -o are added to those before.
func (w *words) set(letter rune, value string) {
	if before := w.values[letter]; before != "" && letter == 'o' {
		value = before + "," + value
	}
	w.values[letter] = value
}

// subdir is an option by which mount(8) shows a directory of a filesystem instead of all of it, but not for types that
// have a helper: it keeps the option to itself, and does nothing.
const subdir = "X-mount.subdir"

var errSubdir = fmt.Errorf("%w: %s: a volume is mounted as a whole: mount it at another directory, and the directory "+
	"in it by mount --bind", ErrUsage, subdir)

// kept returns the arguments of mount(8), which has called this program, and the line for a path in fstab.
func kept(dir string) (arguments, fstab string) {
	// If they cannot be read, nothing is known about them.
	caller, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", os.Getppid()))
	table, _ := os.ReadFile("/etc/fstab")
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && filepath.Clean(unescape(fields[1])) == dir && fields[2] == "volplane" {
			fstab = fields[3]
		}
	}
	return string(caller), fstab
}

// wantsSubdir says whether one of several lists of options, or of the arguments of mount(8), has the option subdir.
func wantsSubdir(lists ...string) bool {
	options := strings.FieldsFunc(strings.Join(lists, ","), func(r rune) bool { return r == 0 || r == ',' })
	return slices.ContainsFunc(options, func(option string) bool {
		for _, flag := range []string{"-o", "--options="} {
			option = strings.TrimPrefix(option, flag)
		}
		name, _, _ := strings.Cut(option, "=")
		return name == subdir
	})
}
