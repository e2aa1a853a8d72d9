package story

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"

	"volplane.dev/volplane/internal/controller"
)

// Cast is what the stories of a package are about.
type Cast struct {
	// Controller builds the controller at the start of each of its lives.
	Controller func(controller.Env) *controller.Controller
	// Commands are the package's own, by name. An error fails the story.
	Commands map[string]func(args []string) error
}

// Run runs all stories of the package; cast is called at the beginning of each scene.
func Run(t *testing.T, cast func(*Scene) Cast) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata has no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { tell(t, file, cast) })
	}
}

// alike returns texts without the identities that the API gives: which ones these are depends on how many writes came
// before.
func alike(ends []string) []string {
	given := regexp.MustCompile(`\buid-[0-9]+\b`)
	var out []string
	for _, text := range ends {
		out = append(out, given.ReplaceAllString(text, "uid"))
	}
	return out
}

// tell runs one story, and repeats it with faults if it has the command.
func tell(t *testing.T, file string, cast func(*Scene) Cast) {
	t.Helper()
	s := &script{file: file, cast: cast}
	s.run(t)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		s.update(t)
		return
	}
	for n := 1; s.faults && n <= s.writes && !t.Failed(); n++ {
		for _, way := range []string{refused, unanswered, diesBefore, diesAfter} {
			t.Run(fmt.Sprintf("write %d %s", n, way), func(t *testing.T) {
				faulty := &script{file: file, cast: cast, fault: &fault{n: n, way: way}}
				faulty.run(t)
				if diff := cmp.Diff(alike(s.ends), alike(faulty.ends)); diff != "" {
					t.Errorf("objects and writes in the end (-without fault +with):\n%s", diff)
				}
			})
		}
	}
}

// script is one run of a story.
type script struct {
	file    string
	cast    func(*Scene) Cast
	archive *txtar.Archive
	scene   *Scene
	// fault is what fails in this run; nil is nothing.
	fault *fault
	// faults says that the story is to be repeated with faults.
	faults bool
	// writes counts what all controllers of the story wanted to write.
	writes int
	// ends are the objects at the end of each scene, and the writes done there.
	ends []string
	// got are the texts that were compared, by name, and names the names in the order of the script.
	got   map[string]string
	names []string
}

// run runs the story in a bubble.
func (s *script) run(t *testing.T) {
	t.Helper()
	archive, err := txtar.ParseFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	s.archive, s.got = archive, map[string]string{}
	synctest.Test(t, func(t *testing.T) {
		commands := map[string]func(*testscript.TestScript, bool, []string){}
		for name, f := range s.commands(t) {
			commands[name] = s.command(f)
		}
		testscript.RunT(bubble{t}, testscript.Params{Files: []string{s.file}, Cmds: commands})
		s.endScene()
	})
}

// command is a command of testscript; the next one begins when all rests.
func (s *script) command(f func([]string) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, not bool, args []string) {
		if not {
			ts.Fatalf("only commands of testscript can be negated")
		}
		ts.Check(f(args))
		synctest.Wait()
		if s.scene != nil {
			for name, own := range s.scene.cast.Commands {
				ts.SetCmd(name, s.command(own))
			}
		}
	}
}

// compare compares a text with the one of the name in the file.
func (s *script) compare(name, got string) error {
	if s.fault != nil {
		return nil // the end is compared with the run without fault
	}
	want := s.text(name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if _, ok := s.got[name]; !ok {
			s.got[name], s.names = got, append(s.names, name)
		}
		want = s.got[name]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("%s (-want +got):\n%s", name, diff)
	}
	return nil
}

// text is a text of the file.
func (s *script) text(name string) string {
	for _, f := range s.archive.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// update writes the texts that were compared into the file.
func (s *script) update(t *testing.T) {
	t.Helper()
	s.archive.Files = slices.DeleteFunc(s.archive.Files, func(f txtar.File) bool {
		_, ok := s.got[f.Name]
		return ok
	})
	for _, name := range s.names {
		s.archive.Files = append(s.archive.Files, txtar.File{Name: name, Data: []byte(s.got[name])})
	}
	//nolint:gosec // part of the source tree
	if err := os.WriteFile(s.file, txtar.Format(s.archive), 0o644); err != nil {
		t.Error(err)
	}
}

// bubble lets testscript run in a bubble, where a test has no subtests.
type bubble struct{ *testing.T }

func (b bubble) Run(_ string, f func(testscript.T)) { f(b) }

func (bubble) Parallel() {}

func (bubble) Verbose() bool { return testing.Verbose() }
