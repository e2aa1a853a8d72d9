package starter

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/workshop/doctor"
	"volplane.dev/volplane/internal/workshop/finding"
)

// TestMain is also the program volplane, because the test of a driver needs its doctor.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "volplane" {
		os.Exit(examine(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// examine does what volplane driver doctor --exec COMMAND does, and prints what is not well.
func examine(args []string) int {
	if len(args) != 4 || args[0]+args[1]+args[2] != "driverdoctor--exec" {
		fmt.Printf("%q\n", args)
		return 1
	}
	report, err := (&doctor.Doctor{Exec: args[3], Scratch: os.Getenv("SCRATCH_BELOW")}).Run(context.Background())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for _, f := range report.Findings {
		if f.Level != finding.Pass {
			fmt.Println(f.Level, f.Check, f.Message)
		}
	}
	fmt.Println(report.Driver, report.Level)
	return 0
}

// TestStarter: what is written passes its own test and the doctor, in each language, and its file is one of a driver.
func TestStarter(t *testing.T) {
	for _, language := range Languages() {
		t.Run(language, func(t *testing.T) { works(t, language) })
	}
}

func works(t *testing.T, language string) {
	t.Helper()
	const name = "files.example.com"
	work := t.TempDir()
	dir := filepath.Join(work, name)
	paths, err := Write(name, dir, language)
	if err != nil || filepath.Base(paths[len(paths)-1]) != "test.sh" {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "skeleton") || strings.Contains(string(text), "[end]") {
			t.Errorf("%s speaks of a skeleton, %v", path, err)
		}
	}
	if err := os.Symlink(self(t), filepath.Join(work, "volplane")); err != nil {
		t.Fatal(err)
	}
	test := exec.CommandContext(t.Context(), "sh", filepath.Join(dir, "test.sh"))
	// The system's Python has gRPC. Nothing is fetched: the modules are those of this one.
	test.Env = append(os.Environ(), "PATH="+work+":/usr/bin:/bin:"+os.Getenv("PATH"), "SCRATCH_BELOW="+work, "GOPROXY=off")
	out, err := test.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "\n"+name+" pass\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := Write(name, dir, language); err == nil {
		t.Error("it is overwritten")
	}
	described(t, name, filepath.Join(dir, name+".yaml"))
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// described checks that a file describes a driver.
func described(t *testing.T, name, path string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "drivers.d")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o600); err != nil {
		t.Fatal(err)
	}
	all, broken := driverfile.Dir(dir).Read()
	if len(all) != 1 || len(broken) > 0 || all[0].Name != name {
		t.Errorf("%+v, %v", all, broken)
	}
}

// TestRefused: a name that no driver in Kubernetes can have, and a language without a template.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, language, want string }{
		{"Files.example.com", "go", "lower case letters"},
		{"files_1", "go", "domain name"},
		{"../files", "python", "domain name"},
		{"files.example.com", "perl", `unknown language "perl": use go or python`},
	} {
		dir := filepath.Join(t.TempDir(), "new")
		if _, err := Write(c.name, dir, c.language); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in %s: %v, want %q", c.name, c.language, err, c.want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s in %s: something is written", c.name, c.language)
		}
	}
}

// TestModules: the modules of the driver are those of this module, so that they are fetched once and kept fresh.
func TestModules(t *testing.T) {
	for _, name := range []string{"go.mod", "go.sum"} {
		own, err := files.ReadFile("files/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		ours, err := os.ReadFile(filepath.Join("..", "..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(own)) {
			line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), " // indirect")
			if !strings.HasPrefix(line, "module ") && !strings.Contains(string(ours), line) {
				t.Errorf("files/%s.txt has %q, which is not in %s of this module: write there what is", name, line, name)
			}
		}
	}
}
