package story

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/kube/kubetest"
)

// commands are those that all stories have; doc.go describes them.
func (s *script) commands(t *testing.T) map[string]func([]string) error {
	on := func(f func(c *Scene, args []string) error, least int) func([]string) error {
		return func(args []string) error {
			if s.scene == nil {
				return errors.New("the story needs a scene first")
			}
			if len(args) < least {
				return fmt.Errorf("%d arguments are missing", least-len(args))
			}
			return f(s.scene, args)
		}
	}
	return map[string]func([]string) error{
		"scene":   func(args []string) error { return s.beginScene(t, args) },
		"faults":  func([]string) error { s.faults = true; return nil },
		"start":   on((*Scene).start, 0),
		"restart": on((*Scene).start, 0),
		"kill":    on((*Scene).kill, 0),
		"apply":   on((*Scene).apply, 1),
		"written": on((*Scene).written, 1),
		"look":    on((*Scene).look, 1),
		"patch":   on((*Scene).patch, 2),
		"delete":  on((*Scene).remove, 1),
		"drop":    on((*Scene).drop, 1),
		"pass":    on((*Scene).pass, 1),
		"refuse":  on((*Scene).refuse, 3),
		"lose":    on((*Scene).lose, 2),
		"during":  on((*Scene).during, 3),
		"allow":   on((*Scene).allow, 0),
		"silence": on((*Scene).silence, 0),
		"expect":  on((*Scene).expect, 1),
		"table":   on((*Scene).table, 2),
	}
}

func (s *script) beginScene(t *testing.T, files []string) error {
	s.endScene()
	s.scene = newScene(t, s)
	s.scene.cast = s.cast(s.scene)
	all, err := s.readAll(files)
	s.scene.API.Set(all...)
	return err
}

// endScene kills the controller, and keeps what it leaves.
func (s *script) endScene() {
	if c := s.scene; c != nil {
		c.outlive()
		_ = c.kill(nil)
		slices.Sort(c.writes)
		// Whether a deletion whose answer was lost is repeated depends on how soon the watch reports it. Repeating it does
		// nothing.
		writes := slices.CompactFunc(c.writes, func(a, b string) bool { return a == b && strings.HasPrefix(a, "delete ") })
		s.ends = append(s.ends, c.objects(), strings.Join(writes, "\n"))
		s.scene = nil
	}
}

func (c *Scene) start([]string) error {
	_ = c.kill(nil)
	c.readsCount(false)
	c.life = c.API.Begin(c.cast.Controller)
	kubetest.Pass(0)
	c.life.Work()
	c.readsCount(true)
	return nil
}

// readsCount has requests that read be noted or not: those that fill caches are not.
func (c *Scene) readsCount(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = yes
}

func (c *Scene) kill([]string) error {
	if c.life != nil {
		kubetest.Pass(0)
		c.life.Kill()
	}
	return nil
}

func (c *Scene) apply(args []string) error {
	all, err := c.script.readAll(args)
	c.keep(all...)
	return err
}

// written has another controller of the process write objects, which no watch has reported yet.
func (c *Scene) written(args []string) error {
	all, err := c.script.readAll(args)
	for _, o := range all {
		switch o := o.(type) {
		case *corev1.PersistentVolumeClaim:
			c.life.Caches.Claims().Wrote(o)
		case *corev1.PersistentVolume:
			c.life.Caches.Volumes().Wrote(o)
		case *corev1.Pod:
			c.life.Caches.Pods().Wrote(o)
		default:
			return fmt.Errorf("objects of %T are written by no two controllers", o)
		}
	}
	return err
}

// look has the controller reconcile a key, and again after the pause that it wants.
func (c *Scene) look(args []string) error {
	key := kubetest.KeyOf(args[0])
	result, err := c.life.Reconcile(c.Context(), key)
	switch {
	case err != nil:
		c.Note("look " + args[0] + ending(false, err))
	case result.After > 0:
		c.life.AddAfter(key, result.After)
	}
	return nil
}

func (c *Scene) patch(args []string) error {
	o, err := c.find(args[0])
	if err != nil {
		return err
	}
	o, err = merged(o, args[1])
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
	kubetest.Pass(d)
	return err
}

func (c *Scene) refuse(args []string) error {
	err := refusal(args[2])
	if err == nil {
		return fmt.Errorf("there is no code %q", args[2])
	}
	return c.addRule(rule{verb: args[0], resource: args[1], err: err}, args[3:])
}

func (c *Scene) lose(args []string) error {
	return c.addRule(rule{verb: args[0], resource: args[1], done: true, err: lost()}, args[2:])
}

func (c *Scene) during(args []string) error {
	f, ok := c.script.commands(nil)[args[2]]
	if own := c.cast.Commands[args[2]]; own != nil {
		f, ok = own, true
	}
	if !ok {
		return fmt.Errorf("there is no command %q", args[2])
	}
	return c.addRule(rule{verb: args[0], resource: args[1], do: func() error { return f(args[3:]) }}, []string{"1"})
}

func (c *Scene) allow([]string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rules = nil
	return nil
}

func (c *Scene) silence([]string) error {
	c.API.Silence()
	return nil
}

func (c *Scene) expect(args []string) error {
	kubetest.Pass(0)
	c.outlive()
	got := c.take(args[0] == "-sort")
	if name := args[len(args)-1]; name != "nothing" {
		return c.script.compare(name, got)
	}
	if got != "" && c.script.fault == nil {
		return fmt.Errorf("the controller has done or told this:\n%s", got)
	}
	return nil
}

func (c *Scene) addRule(r rule, times []string) error {
	r.left = -1
	if len(times) > 0 {
		n, err := strconv.Atoi(times[0])
		if err != nil {
			return err
		}
		r.left = n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rules = append(c.rules, &r)
	return nil
}
