package drivers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// foreignPatience is how long a driver's whole life may last.
const foreignPatience = 10 * time.Minute

// foreignStage is where a script of a foreign driver is played. A nil pointer is the key to it in a script's
// values.
type foreignStage struct {
	// host is the directory for everything that the script makes, and dir that of the control plane.
	host, dir, bin string
	// flags are those of the control plane, each time that it is started.
	flags  []string
	plane  *plane.Plane
	client kubernetes.Interface
	row    *foreignRow
}

func (s *foreignStage) output(program string, args ...string) ([]byte, error) {
	c := exec.Command(filepath.Join(s.bin, program), args...)
	c.Env = append(os.Environ(), "KUBECONFIG="+s.plane.Kubeconfig(), "VOLPLANE_DATA_DIR="+s.dir)
	return c.CombinedOutput()
}

func (s *foreignStage) run(program string, args ...string) error {
	if out, err := s.output(program, args...); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// close ends what the script has started. If the script has failed, it prints what volplane knows about it, and removes
// the rest by force.
func (s *foreignStage) close(t *testing.T) {
	if !s.row.passed() {
		for _, args := range [][]string{
			{"driver", "list", "-o", "wide"},
			{"why", "pvc/data"},
			{"why", "csidriver/" + s.row.driver},
			{"driver", "logs", s.row.driver, "--tail", "30"},
			{"driver", "logs", s.row.driver, "--controller", "--tail", "10"},
			{"driver", "remove", s.row.driver, "--force"},
		} {
			out, err := s.output("volplane", args...)
			t.Logf("%s: volplane %s (%v)\n%s", s.row.script, strings.Join(args, " "), err, out)
		}
	}
	s.plane.Stop()
	for _, pid := range plane.ProcessesOf(s.dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	planetest.UnmountBelow(t, s.host)
	if t.Failed() && !s.row.passed() {
		t.Logf("%s: kept %s", s.row.script, s.host)
		return
	}
	_ = os.RemoveAll(s.host)
}
