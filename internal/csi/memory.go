package csi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"volplane.dev/volplane/internal/redact"
)

// recallLimit bounds the search for what a driver was given before this process
// began.
const recallLimit = 5 * time.Second

// Recall returns the values of all secrets that a driver was given of a volume,
// as far as they are on record. It fails when one of them cannot be known.
type Recall func(ctx context.Context, driver, volumeID string) ([]string, error)

// Memory is the secrets that drivers were given: a driver quotes them also in
// calls that carry none. It keeps hashes of them only. One Memory may serve
// many Drivers, and is safe for concurrent use.
type Memory struct {
	secrets redact.Secrets
	recall  Recall

	mu sync.Mutex
	// recalled are the volumes whose secrets of earlier processes are known.
	recalled map[[2]string]bool
}

// NewMemory returns an empty memory; recall is asked about a volume when a call
// for it fails for the first time, and may be nil.
func NewMemory(recall Recall) *Memory {
	return &Memory{recall: recall, recalled: map[[2]string]bool{}}
}

// WithMemory has a Driver share what it was given with others, and with itself
// after it has registered again.
func WithMemory(m *Memory) Option { return func(o *options) { o.memory = m } }

// hideSecrets takes secrets out of what the driver says: in an error, and of
// the condition of a volume.
func hideSecrets(m *Memory, d *Driver) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			m.secrets.Add(secretsOf(req)...)
			err := next(ctx, method, req, reply, opts...)
			hide := func(text string) string { return m.hide(ctx, d.Name, idOf(req), text) }
			hideInAnswer(reply, hide)
			return hideInError(err, hide)
		}
	}
}

// hideInError returns an error without secrets. One that is no status was made
// here, of nothing that the driver said.
func hideInError(err error, hide func(string) string) error {
	if ours, ok := err.(*refusal); ok { //nolint:errorlint // nothing wraps it here, and what wraps it must be looked at
		return refuse(ours.code, ours.reason, hide(ours.text))
	}
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	// A status' details may quote secrets too; CSI wants them empty.
	return status.Error(s.Code(), hide(s.Message()))
}

// hide returns what the driver said without secrets, or, when they cannot be
// known, why it is not shown.
func (m *Memory) hide(ctx context.Context, driver, volumeID, text string) string {
	if text == "" {
		return ""
	}
	if err := m.remember(ctx, driver, volumeID); err != nil {
		return fmt.Sprintf("(what the driver said is not shown, because it may hold a secret that it was given earlier: %v)",
			err)
	}
	return m.secrets.Hide(text)
}

// remember adds what the driver was given of a volume before this process began.
func (m *Memory) remember(ctx context.Context, driver, volumeID string) error {
	key := [2]string{driver, volumeID}
	m.mu.Lock()
	done := m.recall == nil || volumeID == "" || m.recalled[key]
	m.mu.Unlock()
	if done {
		return nil
	}
	// The call's own time may be over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recallLimit)
	defer cancel()
	values, err := m.recall(ctx, driver, volumeID)
	if err != nil {
		return err
	}
	m.secrets.Add(values...)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recalled[key] = true
	return nil
}

// idOf returns the id of the volume that a request is about, or "".
func idOf(req any) string {
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		return r.GetVolumeId()
	}
	return ""
}

// hideInAnswer takes secrets out of what an answer tells people. All else of an
// answer goes back to the driver and must stay as it is.
func hideInAnswer(reply any, hide func(string) string) {
	m, ok := reply.(proto.Message)
	if !ok {
		return
	}
	eachText(m.ProtoReflect(), func(f protoreflect.FieldDescriptor, _, text string) string {
		if slices.Contains([]protoreflect.Name{"message", "reason"}, f.Name()) {
			return hide(text)
		}
		return text
	})
}
