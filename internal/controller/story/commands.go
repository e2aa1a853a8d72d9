package story

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/kube/kubetest"
)

// builtin is a command with at least so many arguments.
type builtin struct {
	least int
	do    func(c *Scene, args []string) error
}

// commands are those that all scripts have; doc.go describes them.
func commands() map[string]builtin {
	set := func(f func(c *Scene)) builtin {
		return builtin{0, func(c *Scene, _ []string) error { f(c); return nil }}
	}
	return map[string]builtin{
		"faults":    set(func(*Scene) {}),
		"quiet":     set(func(c *Scene) { c.quiet = true }),
		"unordered": set(func(c *Scene) { c.unordered = true }),
		"together":  set(func(c *Scene) { c.together = true }),
		"ordered":   set(func(c *Scene) { c.unordered = false }),
		"silence":   set(func(c *Scene) { c.API.Silence() }),
		"without":   {1, (*Scene).without},
		"option":    {1, (*Scene).option},
		"start":     {0, (*Scene).start},
		"restart":   {0, (*Scene).restart},
		"kill":      {0, (*Scene).kill},
		"look":      {1, (*Scene).look},
		"former":    {2, (*Scene).former},
		"delete":    {1, (*Scene).remove},
		"drop":      {1, (*Scene).drop},
		"pass":      {1, (*Scene).pass},
		"never":     {0, (*Scene).never},
		"table":     {1, (*Scene).table},
		"driver":    {1, (*Scene).moveDriver},
		"busy":      {3, (*Scene).busy},
	}
}

// lineCommands take the rest of the line as one argument.
func lineCommands() map[string]func(c *Scene, text string) error {
	return map[string]func(*Scene, string) error{
		"apply": (*Scene).apply, "written": (*Scene).written, "patch": (*Scene).patch,
	}
}

func (c *Scene) without(names []string) error {
	c.cast.Given = slices.DeleteFunc(slices.Clone(c.cast.Given), func(o string) bool { return slices.Contains(names, o) })
	return nil
}

func (c *Scene) option(args []string) error {
	name, value, _ := strings.Cut(args[0], "=")
	c.options[name] = value
	return nil
}

// begin begins the first process, or another one if that was killed.
func (c *Scene) begin() {
	if !c.begun {
		c.give()
		c.beginDriver()
		c.begun = true
		c.live()
	} else if c.dead {
		c.live()
	}
}

// give stores the objects that exist at the start, unless the script has its own under their names.
func (c *Scene) give() {
	for _, name := range c.cast.Given {
		all, err := c.script.library.named(name)
		if err != nil {
			c.Fatal(err)
		}
		for _, o := range all {
			if m := kubetest.MetaOf(o); !c.exists(o, m.GetNamespace(), m.GetName()) {
				c.API.Set(o)
			}
		}
	}
}

func (c *Scene) exists(o runtime.Object, namespace, name string) bool {
	_, err := c.API.Tracker().Get(kubetest.ResourceOf(o), namespace, name)
	return err == nil
}

// live begins a process.
func (c *Scene) live() {
	c.readsCount(false)
	c.dead = false
	c.lives = append(c.lives, c.API.Begin(c.cast.Controller))
	kubetest.Pass(0)
	c.readsCount(true)
}

// life is the present process.
func (c *Scene) life() *kubetest.Process { return c.lives[len(c.lives)-1] }

// readsCount switches the recording of reads, which is off while caches are filled.
func (c *Scene) readsCount(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = yes
}

// start runs the controller on its own. With "unordered", what happens at the same moment is shown sorted by object
// from then on.
func (c *Scene) start(args []string) error {
	if c.works {
		return errors.New("the controller works already")
	}
	c.unordered = c.unordered || len(args) > 0 && args[0] == "unordered"
	c.begin()
	c.works = true
	c.life().Work()
	return nil
}

// restart kills a running controller, and begins another one in the same state of work.
func (c *Scene) restart([]string) error {
	works := c.works
	if works {
		_ = c.kill(nil)
	}
	if !works && c.begun {
		c.live()
	}
	c.begin()
	if works {
		return c.start(nil)
	}
	return nil
}

func (c *Scene) kill([]string) error {
	kubetest.Pass(0)
	c.life().Kill()
	c.works, c.dead = false, true
	return nil
}

func (c *Scene) apply(text string) error {
	all, err := c.script.library.named(text)
	c.keep(all...)
	return err
}

// written makes another controller of the process write objects, which no watch has reported yet.
func (c *Scene) written(text string) error {
	all, err := c.script.library.named(text)
	for _, o := range all {
		switch o := o.(type) {
		case *corev1.PersistentVolumeClaim:
			c.life().Caches.Claims().Wrote(o)
		case *corev1.PersistentVolume:
			c.life().Caches.Volumes().Wrote(o)
		case *corev1.Pod:
			c.life().Caches.Pods().Wrote(o)
		default:
			return fmt.Errorf("objects of %T are written by no two controllers", o)
		}
	}
	return err
}

// look has the controller reconcile keys, one after the other.
func (c *Scene) look(keys []string) error {
	c.begin()
	c.reconcile(c.life(), keys)
	return nil
}

// former makes the previous process perform the rest of the line.
func (c *Scene) former(args []string) error {
	c.reconcile(c.lives[len(c.lives)-2], args[1:])
	return nil
}

func (c *Scene) reconcile(life *kubetest.Process, keys []string) {
	for _, text := range keys {
		key := kubetest.KeyOf(text)
		result, err := life.Reconcile(c.Context(), key)
		switch {
		case err != nil:
			c.Note("error: " + err.Error())
		case result.After > 0 && c.works:
			life.AddAfter(key, result.After)
		case result.After > 0:
			c.Note("again after " + result.After.String())
		}
	}
}

func (c *Scene) patch(text string) error {
	object, change, _ := strings.Cut(text, " ")
	o, err := c.find(object)
	if err != nil {
		return err
	}
	o, err = merged(o, change)
	if err != nil {
		return err
	}
	c.keep(o)
	return nil
}

func (c *Scene) remove(args []string) error {
	return c.each(args, func(o runtime.Object) error { return c.API.Delete(o, metav1.DeleteOptions{}) })
}

func (c *Scene) drop(args []string) error {
	return c.each(args, func(o runtime.Object) error { c.API.Drop(o); return nil })
}

// each does something with each object of these names.
func (c *Scene) each(names []string, do func(runtime.Object) error) error {
	for _, name := range names {
		o, err := c.find(name)
		if err != nil {
			return err
		}
		if err := do(o); err != nil {
			return err
		}
	}
	return nil
}

func (c *Scene) pass(args []string) error {
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	c.begin()
	kubetest.Pass(d)
	return nil
}

// never ends the rules of these requests, or all.
func (c *Scene) never(match []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rules = slices.DeleteFunc(c.rules, func(r *rule) bool {
		return len(match) == 0 || r.match == strings.Join(match, " ")
	})
	return nil
}
