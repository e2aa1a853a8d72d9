package drivers

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/tools/txtar"

	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// TestForeign plays testdata/foreign/*.txtar, each with a control plane of its own: third-party drivers, which users
// have built. Their programs are below the directory $DRIVERS; a driver whose programs are missing, or which needs
// something that this kernel lacks, is listed as such and not played. `make foreign` runs it. Without $DRIVERS it only
// reads the scripts.
func TestForeign(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "foreign", "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatal("there are no scripts of foreign drivers: ", err)
	}
	drivers := os.Getenv("DRIVERS")
	table := &foreignTable{rows: map[string]*foreignRow{}}
	var present []string
	for _, path := range paths {
		row, err := readForeign(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if drivers == "" {
			continue
		}
		table.rows[row.script] = row
		if missing := row.missing(drivers); missing == "" {
			present = append(present, path)
		} else {
			row.result = "not there: " + missing
		}
	}
	if drivers == "" {
		return
	}
	t.Cleanup(func() { table.print(t) })
	if len(present) == 0 {
		return
	}
	testscript.Run(t, testscript.Params{
		Files:               present,
		RequireExplicitExec: true,
		Setup:               func(e *testscript.Env) error { return setUpForeign(t, e, table) },
		Condition:           hasKernel,
		Cmds:                planetest.Commands{"life": playLife, "until": planetest.Until},
	})
}

// hasKernel is the condition of scripts about features of this host's kernel.
func hasKernel(what string) (bool, error) {
	if what != "device-mapper" {
		return false, fmt.Errorf("unknown condition %q", what)
	}
	devices, err := os.ReadFile("/proc/misc")
	return bytes.Contains(devices, []byte(" device-mapper\n")), err
}

// foreignRow is what the table says about one driver.
type foreignRow struct {
	script, title string
	needs         []string
	driver        string
	version       string
	result        string
	// steps are those that were played; the last one failed if the driver did.
	steps []string
}

// passed says whether the driver completed everything that is possible on this host.
func (r *foreignRow) passed() bool { return r.result == "works" || r.result == "registers" }

// readForeign reads the title of a script, its first line, and its file "needs", each line of which is `file PATH`
// below $DRIVERS, `program NAME` in PATH, `kernel FILESYSTEM`, or `mounts shared`.
func readForeign(path string) (*foreignRow, error) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return nil, err
	}
	row := &foreignRow{script: strings.TrimSuffix(filepath.Base(path), ".txtar")}
	first, _, _ := strings.Cut(string(archive.Comment), "\n")
	row.title = strings.TrimPrefix(first, "# ")
	for _, f := range archive.Files {
		if f.Name == "needs" {
			row.needs = strings.Split(strings.TrimSpace(string(f.Data)), "\n")
		}
	}
	for _, need := range row.needs {
		if kind, what, ok := strings.Cut(need, " "); !ok || what == "" ||
			!slices.Contains([]string{"file", "program", "kernel", "mounts"}, kind) {
			return nil, fmt.Errorf("%s needs %q: want file PATH, program NAME, kernel FILESYSTEM or mounts shared", path, need)
		}
	}
	if len(row.needs) == 0 || row.title == first {
		return nil, fmt.Errorf("%s has no title in its first line, or no file `needs`", path)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "foreign-drivers.md"))
	if err == nil && !bytes.Contains(page, []byte("| "+row.script+" |")) {
		err = fmt.Errorf("the table of docs/foreign-drivers.md has no row for %s", path)
	}
	return row, err
}

// missing returns what the driver needs and this host has not.
func (r *foreignRow) missing(drivers string) string {
	kernel, _ := os.ReadFile("/proc/filesystems")
	var out []string
	for _, need := range r.needs {
		kind, what, _ := strings.Cut(need, " ")
		there := true
		switch kind {
		case "file":
			_, err := os.Stat(filepath.Join(drivers, what))
			there = err == nil
		case "program":
			_, err := exec.LookPath(what)
			there = err == nil
		case "kernel":
			there = slices.Contains(strings.Fields(string(kernel)), what)
		case "mounts":
			mounts, _ := os.ReadFile("/proc/self/mountinfo")
			there = regexp.MustCompile(`(?m)^\S+ \S+ \S+ / / .* shared:`).Match(mounts)
		}
		if !there {
			out = append(out, need)
		}
	}
	return strings.Join(out, ", ")
}

// foreignTable is the result of all scripts.
type foreignTable struct {
	mu   sync.Mutex
	rows map[string]*foreignRow
}

func (f *foreignTable) print(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "SCRIPT\tDRIVER\tVERSION\tRESULT\tSTEPS")
	for _, name := range sortedKeys(f.rows) {
		r := f.rows[name]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.script, cmp.Or(r.driver, "-"), cmp.Or(r.version, "-"),
			cmp.Or(r.result, "not played"), cmp.Or(strings.Join(r.steps, ", "), "-"))
	}
	_ = w.Flush()
	t.Log("\n" + out.String())
}

func sortedKeys(rows map[string]*foreignRow) []string {
	var out []string
	for name := range rows {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// setUpForeign starts a control plane for one script. $HOST is a short directory for everything that the script makes,
// which must be empty at the end.
func setUpForeign(t *testing.T, e *testscript.Env, table *foreignTable) error {
	host, err := os.MkdirTemp("", "vp-")
	if err != nil {
		return err
	}
	s := &foreignStage{
		host: host, dir: filepath.Join(host, "up"), flags: []string{"--listen", plane.FreeAddress("127.0.0.1")},
	}
	name := strings.TrimPrefix(filepath.Base(e.WorkDir), "script-")
	table.mu.Lock()
	s.row = table.rows[name]
	s.row.result = "failed before its life"
	table.mu.Unlock()
	if s.plane, err = plane.Start(t.Context(), s.dir, s.flags...); err != nil {
		return err
	}
	if s.client, err = s.plane.Client(); err != nil {
		s.plane.Stop()
		return err
	}
	s.bin = filepath.Dir(plane.Bin("volplane"))
	e.Values[(*foreignStage)(nil)] = s
	e.Defer(func() { s.close(t) })
	for name, value := range map[string]string{
		"DRIVERS": os.Getenv("DRIVERS"), "HOST": host, "HOME": e.WorkDir, "KUBECONFIG": s.plane.Kubeconfig(),
		"VOLPLANE_DATA_DIR": s.dir,
		"PATH":              s.bin + string(os.PathListSeparator) + e.Getenv("PATH"),
	} {
		e.Setenv(name, value)
	}
	e.Setenv("HOST_ADDRESS", hostAddress())
	for _, name := range []string{"PORT1", "PORT2", "PORT3", "PORT4"} {
		e.Setenv(name, strings.TrimPrefix(plane.FreeAddress("127.0.0.1"), "127.0.0.1:"))
	}
	return nil
}

// hostAddress returns an address of this host for servers that refuse to be reached by loopback, if it has one.
func hostAddress() string {
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	return "127.0.0.1"
}
