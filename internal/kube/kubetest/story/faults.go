package story

import (
	"errors"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/kube/kubetest"
)

// Ways in which one write fails when a story is repeated.
const (
	refused    = "is refused"
	unanswered = "is not answered"
	diesBefore = "is not done before the controller dies"
	diesAfter  = "is the last one before the controller dies"
)

// patience is longer than the first pauses after an error.
const patience = time.Minute

// fault is the failure of one write of a story.
type fault struct {
	// n is the number of the write, from 1.
	n   int
	way string
	// dying says that the controller does nothing any more, and is to be started again.
	dying bool
}

// lost is the answer to a write whose own answer is lost.
func lost() error { return apierrors.NewTimeoutError("the answer is lost", 0) }

// rule is what becomes of requests.
type rule struct {
	verb, resource string
	// left is how many requests are still meant; negative is all.
	left int
	// done says that a write is done although its answer is err.
	done bool
	err  error
	// do, when set, is done before the request.
	do func() error
}

// refusal is the error of a code; nil if the code is unknown.
func refusal(code string) error {
	things, why := schema.GroupResource{Resource: "objects"}, errors.New("refused by the story")
	return map[string]error{
		"conflict":  apierrors.NewConflict(things, "o", why),
		"notfound":  apierrors.NewNotFound(things, "o"),
		"forbidden": apierrors.NewForbidden(things, "o", why),
		"toomany":   apierrors.NewTooManyRequestsError(why.Error()),
		"timeout":   apierrors.NewTimeoutError(why.Error(), 0),
		"internal":  apierrors.NewInternalError(why),
	}[code]
}

// obey applies the rules for a request, up to the first that answers it.
func (c *Scene) obey(verb, resource string) (done bool, answer error) {
	for _, r := range c.rulesFor(verb, resource) {
		if r.do != nil {
			if err := r.do(); err != nil {
				c.Errorf("during %s %s: %v", verb, resource, err)
			}
		}
		if r.err != nil {
			return r.done, r.err
		}
	}
	return true, nil
}

// rulesFor returns the rules for a request, and counts it.
func (c *Scene) rulesFor(verb, resource string) []*rule {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*rule
	for _, r := range c.rules {
		if r.left != 0 && r.verb == verb && r.resource == resource {
			r.left--
			out = append(out, r)
			if r.err != nil {
				break
			}
		}
	}
	return out
}

// fate decides about a write of the controller.
func (c *Scene) fate(_ int, words string) (done bool, answer error) {
	c.script.writes++
	if f := c.script.fault; f != nil {
		if done, err := f.fate(c.script.writes); err != nil {
			return done, err
		}
	}
	word := strings.Fields(words)
	return c.obey(word[0], word[1])
}

func (f *fault) fate(n int) (done bool, answer error) {
	if f.dying {
		return false, apierrors.NewInternalError(errors.New("the controller is dead"))
	}
	if n != f.n {
		return true, nil
	}
	switch f.way {
	case refused:
		return false, refusal("conflict")
	case unanswered:
		return true, lost()
	}
	f.dying = true
	return f.way == diesAfter, lost()
}

// outlive lets a controller that is dying die, and its successor or itself finish what it was at.
func (c *Scene) outlive() {
	f := c.script.fault
	if f == nil || c.life == nil {
		return
	}
	if f.dying {
		_ = c.kill(nil)
		c.API.Lock()
		f.dying = false
		c.API.Unlock()
		_ = c.start(nil)
	}
	kubetest.Pass(patience)
}

// read handles each request that reads.
func (c *Scene) read(action clienttesting.Action) (bool, runtime.Object, error) {
	resource := action.GetResource().Resource
	c.mu.Lock()
	counts := c.reads
	c.mu.Unlock()
	if !counts || resource == "events" {
		return false, nil, nil
	}
	_, err := c.obey(action.GetVerb(), resource)
	about := short(resource) + "/" + action.GetNamespace()
	if get, ok := action.(clienttesting.GetAction); ok {
		about = short(resource) + "/" + strings.TrimPrefix(action.GetNamespace()+"/"+get.GetName(), "/")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, action.GetVerb()+" "+about+ending(false, err))
	return err != nil, nil, err
}
