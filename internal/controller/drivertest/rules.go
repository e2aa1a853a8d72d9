package drivertest

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/csi/csitest"
)

// rule says what becomes of calls and requests.
type rule struct {
	match, effect string
	always        bool
}

func (s *stage) addRule(match, effect string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	match, always := strings.CutPrefix(match, "always ")
	// A rule about one call precedes those about each call.
	at := slices.IndexFunc(s.rules, func(r *rule) bool { return r.always })
	if always || at < 0 {
		at = len(s.rules)
	}
	s.rules = slices.Insert(s.rules, at, &rule{match, effect, always})
}

func (s *stage) dropRules(match string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = slices.DeleteFunc(s.rules, func(r *rule) bool { return r.match == match })
}

// effect returns what becomes of a call or request; empty is nothing special.
func (s *stage) effect(what string) string {
	s.mu.Lock()
	at := slices.IndexFunc(s.rules, func(r *rule) bool { return what == r.match || strings.HasPrefix(what, r.match+" ") })
	if at < 0 {
		s.mu.Unlock()
		return ""
	}
	effect := s.rules[at].effect
	if !s.rules[at].always {
		s.rules = slices.Delete(s.rules, at, at+1)
	}
	s.mu.Unlock()
	line, ok := strings.CutPrefix(effect, "do ")
	if !ok {
		return strings.TrimPrefix(effect, "as usual")
	}
	s.setAmid(true)
	defer s.setAmid(false)
	line, effect, _ = strings.Cut(line, " then ")
	s.do(line)
	return effect
}

// write decides about each write, and notes it.
func (s *stage) write(_ int, what string) (done bool, err error) {
	if s.takeOthers() {
		return true, nil
	}
	s.turn.Lock()
	s.turn.Unlock() //nolint:staticcheck // it only waits for its turn
	if done, err := s.step(what); err != nil {
		return done, err
	}
	s.noteWrite(what)
	words := strings.Fields(what)
	effect := s.effect(what)
	return effect == "" || effect == "lost", refusal(effect, words[1])
}

// read decides about reads that no cache answers.
func (s *stage) read(action clienttesting.Action) (bool, runtime.Object, error) {
	a, ok := action.(clienttesting.GetActionImpl)
	if !ok {
		return false, nil, nil
	}
	err := refusal(s.effect("get "+a.Resource.Resource+" "+a.Name), a.Resource.Resource)
	return err != nil, nil, err
}

func refusal(effect, resource string) error {
	r := schema.GroupResource{Resource: resource}
	switch effect {
	case "":
		return nil
	case "not found":
		return apierrors.NewNotFound(r, "it")
	case "conflict":
		return apierrors.NewConflict(r, "it", errors.New("it was changed"))
	}
	return errors.New(effect)
}

// call decides about each call of the driver, and notes it.
func (s *stage) call(method string, request proto.Message) csitest.Action {
	if done, err := s.step(method); err != nil {
		return csitest.Action{Err: status.Error(codes.Unavailable, err.Error()), After: done && s.Answers[method] == nil}
	}
	s.noteCall(s, method, s.usual(request), request)
	effect, done := strings.CutPrefix(s.effect(method+" "+subject(request)), "done, ")
	switch {
	case effect == "" && s.Answers[method] != nil:
		return csitest.Action{Answer: s.Answers[method]}
	case effect == "":
		return csitest.Action{}
	case effect == "hang":
		return csitest.Action{Hang: true}
	case strings.HasPrefix(effect, "{"):
		return csitest.Action{Answer: s.answer(request, effect)}
	}
	name, message, _ := strings.Cut(effect, ": ")
	return csitest.Action{Err: status.Error(s.code(name), message), After: done}
}

// subject is the volume or snapshot that a call is about.
func subject(request proto.Message) string {
	switch r := request.(type) {
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	case interface{ GetName() string }:
		return r.GetName()
	case interface{ GetSnapshotId() string }:
		return r.GetSnapshotId()
	}
	return ""
}

func (s *stage) code(name string) codes.Code {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return code
		}
	}
	s.Errorf("there is no code %s", name)
	return codes.Unknown
}

// answer makes the response to a request from JSON, which may have the fields of CSI 1.12.
func (s *stage) answer(request proto.Message, text string) proto.Message {
	name := strings.TrimSuffix(string(request.ProtoReflect().Descriptor().FullName()), "Request") + "Response"
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		s.Error(err)
		return nil
	}
	m := kind.New().Interface()
	if err := csitest.Older(m, text); err != nil {
		s.Error(err)
	}
	return m
}
