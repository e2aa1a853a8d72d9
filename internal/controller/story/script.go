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
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// Cast is what the scripts of a package are about.
type Cast struct {
	// Controller builds the controller at the start of each of its lives.
	Controller func(controller.Env) *controller.Controller
	// Commands are the package's own, by name. An error fails the script.
	Commands map[string]func(args []string) error
	// Given are objects that exist at the start unless a script says "without NAME".
	Given []string
	// Names are files of objects whose words name what the controller creates, in addition to those that a script applies.
	Names []string
	// Driver is the driver, with the capabilities that a script does not change; nil if there is none.
	Driver *csitest.Config
	// Usual are requests for which a script shows only the differences.
	Usual []proto.Message
	// Answers are the driver's answers by method, if they do not follow from what it stores.
	Answers map[string]proto.Message
	// Tells, if set, returns what an object says that was written, where its fields do not say it well; empty for others.
	Tells func(runtime.Object) string
	// Lazy is a resource whose writes are not shown while the controller works by itself: how many they are
	// depends on the order in which its workers run.
	Lazy string
	// Holds, if set, returns the violated invariant, or nil. In scripts with faults it is called before each call of the
	// driver and after each write, with all of them up to that one.
	Holds func(api *kubetest.API, steps []string) error
}

// Run runs all scripts of a folder; cast is called at the beginning of each.
func Run(t *testing.T, folder string, cast func(*Scene) Cast) {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no scripts: %v", folder, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runFile(t, file, cast) })
	}
}

func runFile(t *testing.T, file string, cast func(*Scene) Cast) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	paragraphs := strings.Split(strings.TrimSpace(string(archive.Comment)), "\n\n")
	var all []string
	for _, paragraph := range paragraphs {
		t.Run(title(paragraph), func(t *testing.T) {
			s := &script{text: paragraph, cast: cast, library: newLibrary(archive)}
			got := s.play(t)
			if all = append(all, got); os.Getenv("UPDATE_GOLDEN") != "" {
				return
			}
			if diff := cmp.Diff(paragraph, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
	if os.Getenv("UPDATE_GOLDEN") == "" || len(all) < len(paragraphs) || t.Failed() {
		return
	}
	archive.Comment = []byte(strings.Join(all, "\n\n") + "\n")
	//nolint:gosec // part of the source tree
	if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

// title is the name of a paragraph's test.
func title(paragraph string) string {
	line, _, _ := strings.Cut(paragraph, "\n")
	line, _, _ = strings.Cut(strings.TrimPrefix(line, "# "), ":")
	return line
}

// script is one paragraph of a file.
type script struct {
	text    string
	cast    func(*Scene) Cast
	library *library
}

// play runs a script, repeats it with faults if it has the command, and returns it with the results.
func (s *script) play(t *testing.T) string {
	t.Helper()
	usual := s.run(t, fault{})
	at := slices.Index(usual.out, "faults")
	if at < 0 {
		return strings.Join(usual.out, "\n")
	}
	var differ []string
	for i, tried := range usual.tried {
		for _, way := range ways(tried) {
			what := tried + " " + way
			t.Run(what, func(t *testing.T) {
				faulty := s.run(t, fault{n: i + 1, way: way})
				if diff := cmp.Diff(usual.end, faulty.end); diff != "" {
					t.Errorf("objects in the end (-without fault +with):\n%s", diff)
				}
				if done := faulty.done(); done != usual.done() {
					differ = append(differ, "  "+what+": "+done)
				}
			})
		}
	}
	return strings.Join(slices.Insert(usual.out, at+1, differ...), "\n")
}

// run runs the script once, in a bubble.
func (s *script) run(t *testing.T, f fault) (c *Scene) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c = newScene(t, s, f)
		for line := range strings.SplitSeq(s.text, "\n") {
			if strings.HasPrefix(line, "  ") {
				continue
			}
			if c.out = append(c.out, line); strings.HasPrefix(line, "#") {
				continue
			}
			if err := c.command(line); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if !c.together {
				c.out = append(c.out, c.happened()...)
			}
		}
		if c.together {
			c.out = append(c.out, c.happened()...)
		}
		c.close()
	})
	return c
}

// command runs a command, and lets the controller survive a fault that happens there; it returns when everything is at
// rest.
func (c *Scene) command(line string) error {
	err := c.do(line)
	kubetest.Pass(0)
	if !c.takeFired() {
		return err
	}
	if c.fault.dying {
		c.fault.dying = false
		if err := c.restart(nil); err != nil {
			return err
		}
	}
	if strings.HasPrefix(line, "look ") {
		err = c.do(line)
	}
	kubetest.Pass(patience)
	return err
}

// do does one line of a script.
func (c *Scene) do(line string) error {
	if match, effect, ok := strings.Cut(line, " => "); ok {
		return c.addRule(match, effect)
	}
	word, rest, _ := strings.Cut(line, " ")
	if f := c.cast.Commands[word]; f != nil {
		return f(strings.Fields(rest))
	}
	if f := lineCommands()[word]; f != nil && rest != "" {
		return f(c, rest)
	}
	b, ok := commands()[word]
	args := strings.Fields(rest)
	if !ok || len(args) < b.least {
		return fmt.Errorf("there is no such command")
	}
	return b.do(c, args)
}

// close ends the script: it keeps the resulting objects, and reports faults that no request has met.
func (c *Scene) close() {
	if c.fault.n > 0 {
		kubetest.Pass(patience)
	}
	c.end = alike(c.objects() + c.inventory())
	for _, life := range c.lives {
		life.Kill()
	}
	if len(c.lives) == 0 {
		c.Error("the controller does nothing")
	}
	for _, r := range c.rules {
		if c.fault.n == 0 && r.left > 0 {
			c.Errorf("nothing was %q %d times more", r.match, r.left)
		}
	}
}

// alike returns a text without the UIDs from the API, which depend on the number of earlier writes.
func alike(text string) string {
	return regexp.MustCompile(`\buid-[0-9]+\b`).ReplaceAllString(text, "uid")
}
