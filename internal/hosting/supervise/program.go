package supervise

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/process/redact"
)

// Program is what is run.
type Program struct {
	// Name is the name of the program's files and cgroup, unique in the supervisor: letters, digits, dots, dashes and
	// underscores, such as "hostpath.csi.k8s.io-node".
	Name string
	// Argv is the command line; its first element is an absolute path.
	Argv []string
	// Env is the complete environment, K=V. It may have secrets: it is in no log and in no record.
	Env []string
	// Dir is the working directory, "/" if empty.
	Dir string
	// Handed is the absolute path of a directory that the program has open as HandedFD; empty for none.
	Handed string
	// Generation is any text. A program that differs in it only is another one, so a new text restarts the program.
	Generation string
	// Prepare, if it is set, is called before each start, which fails with its error.
	Prepare func() error
}

// ErrInvalid says that a Program or a name cannot be run.
var ErrInvalid = errors.New("not a valid program")

// maxName leaves room for suffixes in the names of files.
const maxName = 200

var nameForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

func checkName(name string) error {
	if len(name) > maxName || !nameForm.MatchString(name) {
		return fmt.Errorf("%w: the name %q", ErrInvalid, name)
	}
	return nil
}

func (p *Program) check() error {
	if err := checkName(p.Name); err != nil {
		return err
	}
	switch {
	case len(p.Argv) == 0:
		return fmt.Errorf("%w: %s has no command", ErrInvalid, p.Name)
	case !filepath.IsAbs(p.Argv[0]):
		return fmt.Errorf("%w: %s: %q is not an absolute path", ErrInvalid, p.Name, p.Argv[0])
	}
	dirs := []string{p.Dir, p.Handed}
	if i := slices.IndexFunc(dirs, isRelative); i >= 0 {
		return fmt.Errorf("%w: %s: the directory %q is not an absolute path", ErrInvalid, p.Name, dirs[i])
	}
	if i := slices.IndexFunc(p.Argv, hasNUL); i >= 0 || hasNUL(p.Dir) || hasNUL(p.Handed) {
		return fmt.Errorf("%w: %s: an argument has a NUL byte", ErrInvalid, p.Name)
	}
	for i, e := range p.Env {
		// The entry itself may be a secret.
		if at := strings.IndexByte(e, '='); at < 1 || hasNUL(e) {
			return fmt.Errorf("%w: %s: entry %d of the environment is not K=V", ErrInvalid, p.Name, i)
		}
	}
	return nil
}

func isRelative(dir string) bool { return dir != "" && !filepath.IsAbs(dir) }

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

// dir returns the working directory.
func (p *Program) dir() string { return cmp.Or(p.Dir, "/") }

// hash distinguishes programs without disclosing their secrets. The order of the environment has no meaning.
func (p *Program) hash() string {
	env := slices.Sorted(slices.Values(p.Env))
	// Marshal cannot fail for these types. JSON only gives each list one form.
	rest := []string{p.dir(), p.Generation}
	if p.Handed != "" {
		rest = append(rest, p.Handed)
	}
	data, _ := json.Marshal([][][]byte{toBytes(p.Argv), toBytes(env), toBytes(rest)})
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func toBytes(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

// secrets returns what of the environment is hidden when the program prints it. Every longer value counts, because
// nothing shows which one is a secret; paths and addresses of sockets do not, because errors are useless without them.
func (p *Program) secrets() *redact.Secrets {
	const least = 8
	s := &redact.Secrets{}
	for _, e := range p.Env {
		_, value, _ := strings.Cut(e, "=")
		if len(value) >= least && !strings.HasPrefix(value, "/") && !strings.HasPrefix(value, "unix:") {
			s.Add(value)
		}
	}
	return s
}
