package story

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/csi/csitest"
)

// These are the ways in which one write or call fails when a script is repeated.
const (
	refused    = "is refused"
	unanswered = "is not answered"
	diesBefore = "is not done before the controller dies"
	diesAfter  = "is the last one before the controller dies"
)

// ways returns the ways in which a write or a driver call can fail; a driver's answers are separate.
func ways(tried string) []string {
	if isCall(tried) {
		return []string{diesBefore, diesAfter}
	}
	return []string{refused, unanswered, diesBefore, diesAfter}
}

func isCall(tried string) bool { return tried[0] <= 'Z' }

// patience is longer than the first pauses after an error.
const patience = time.Minute

var errDead = apierrors.NewInternalError(errors.New("the controller is dead"))

// fault is the failure of one write or call of a script.
type fault struct {
	// n is the number of the write or call, from 1; 0 means neither.
	n   int
	way string
	// dying means that the controller has stopped and must be started again.
	dying bool
	// fired means that the fault has happened since the last query.
	fired bool
}

// try counts a write or call, and returns whether this run's fault allows it.
func (c *Scene) try(what string) (done bool, answer error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &c.fault
	if f.dying {
		return false, errDead
	}
	c.tried = append(c.tried, what)
	if len(c.tried) != f.n || !slices.Contains(ways(what), f.way) {
		return true, nil
	}
	f.fired = true
	switch f.way {
	case refused:
		return false, refusal("conflict")
	case unanswered:
		return true, refusal("lost")
	}
	f.dying = true
	return f.way == diesAfter, errDead
}

// takeFired says whether the fault has happened since this was called last.
func (c *Scene) takeFired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	fired := c.fault.fired
	c.fault.fired = false
	return fired
}

// rule determines the result of requests and calls.
type rule struct {
	match, effect string
	// left is the number of matches that remain; negative means all.
	left int
}

// addRule adds the rule "[N|always] MATCH => EFFECT". Rules about some requests precede those about all requests, of
// which the last one applies.
func (c *Scene) addRule(match, effect string) error {
	r := &rule{match, effect, 1}
	word, rest, _ := strings.Cut(match, " ")
	if n, err := strconv.Atoi(word); err == nil {
		r.match, r.left = rest, n
	} else if word == "always" {
		r.match, r.left = rest, -1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.left < 0 {
		c.rules = slices.DeleteFunc(c.rules, func(old *rule) bool { return old.left < 0 && old.match == r.match })
	}
	at := slices.IndexFunc(c.rules, func(r *rule) bool { return r.left < 0 })
	if r.left < 0 || at < 0 {
		at = len(c.rules)
	}
	c.rules = slices.Insert(c.rules, at, r)
	return nil
}

// effect performs what rules request before a request or call, up to the first rule with another effect, and returns
// that effect; empty means none.
func (c *Scene) effect(what string) string {
	for {
		effect := c.take(what)
		line, do := strings.CutPrefix(effect, "do ")
		if !do {
			return strings.TrimPrefix(effect, "as usual")
		}
		line, effect, then := strings.Cut(line, " then ")
		if err := c.do(line); err != nil {
			c.Errorf("during %s: %s: %v", what, line, err)
		}
		if then {
			return effect
		}
	}
}

// take returns the effect of the first rule for a request or call, which it uses up.
func (c *Scene) take(what string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.rules {
		if r.left != 0 && strings.HasPrefix(what+" ", r.match+" ") {
			r.left--
			return r.effect
		}
	}
	return ""
}

// byScript is what an error says that a script has ordered.
const byScript = "refused by the script"

// refusal is the answer to a request that matches a rule with this effect.
func refusal(effect string) error {
	things, why := schema.GroupResource{Resource: "objects"}, errors.New(byScript)
	known := map[string]error{
		"conflict":  apierrors.NewConflict(things, "o", why),
		"notfound":  apierrors.NewNotFound(things, "o"),
		"forbidden": apierrors.NewForbidden(things, "o", why),
		"toomany":   apierrors.NewTooManyRequestsError(why.Error()),
		"timeout":   apierrors.NewTimeoutError(why.Error(), 0),
		"invalid":   apierrors.NewInvalid(schema.GroupKind{Kind: "Object"}, "o", nil),
		"internal":  apierrors.NewInternalError(why),
		"lost":      apierrors.NewTimeoutError("the answer is lost", 0),
		"unknown":   apierrors.NewGenericServerResponse(http.StatusNotFound, "", things, "o", "", 0, true),
	}
	if err := known[effect]; err != nil || effect == "" {
		return err
	}
	return errors.New(effect)
}

// fate decides about a write of the controller, "VERB RESOURCE NAME".
func (c *Scene) fate(_ int, words string) (done bool, answer error) {
	if done, err := c.try(words); err != nil {
		return done, err
	}
	effect := c.effect(words)
	return effect == "" || effect == "lost", refusal(effect)
}

// read decides about each request that reads, and notes it.
func (c *Scene) read(action clienttesting.Action) (bool, runtime.Object, error) {
	resource := action.GetResource().Resource
	c.mu.Lock()
	counts := c.reads
	c.mu.Unlock()
	if !counts || resource == "events" {
		return false, nil, nil
	}
	name := action.GetNamespace()
	if get, ok := action.(clienttesting.GetAction); ok {
		name = strings.TrimPrefix(name+"/"+get.GetName(), "/")
	}
	err := refusal(c.effect(action.GetVerb() + " " + resource + " " + name))
	line := action.GetVerb() + " " + short(resource) + "/" + name + ending(false, err)
	if !c.works {
		c.Note(line)
		return err != nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, line)
	return err != nil, nil, err
}

// call decides about each call of the driver, and notes it.
func (c *Scene) call(method string, request proto.Message) csitest.Action {
	answer := c.cast.Answers[method]
	done, err := c.try(method)
	if done {
		c.did(method)
	}
	if err != nil {
		return csitest.Action{Err: unavailable(err), After: done && answer == nil}
	}
	c.noteCall(method, request)
	effect, after := strings.CutPrefix(c.effect(method+" "+subject(request)), "done, ")
	switch {
	case effect == "" && answer != nil:
		return csitest.Action{Answer: answer}
	case effect == "":
		return csitest.Action{}
	case effect == "hang":
		return csitest.Action{Hang: true}
	case strings.HasPrefix(effect, "{"):
		return csitest.Action{Answer: c.answer(request, effect)}
	}
	return csitest.Action{Err: c.failure(effect), After: after}
}
