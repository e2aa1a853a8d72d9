package csi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"volplane.dev/volplane/internal/process/redact"
)

// recallLimit is the time limit of a Recall.
const recallLimit = 5 * time.Second

// Recall returns the values of all secrets that earlier processes passed to a driver in calls for a
// volume, or for all of its volumes if volumeID is empty, as far as that is recorded. It fails when one
// of them cannot be read.
type Recall func(ctx context.Context, driver, volumeID string) ([]string, error)

// Memory keeps hashes of the secrets that drivers received: a driver may quote them in the answers
// to calls that carry none. One Memory may serve many Drivers. It is safe for concurrent use.
type Memory struct {
	secrets redact.Secrets
	recall  Recall

	mu sync.Mutex
	// recalled holds the driver and volume id of each successful Recall.
	recalled map[[2]string]bool
}

// NewMemory returns an empty Memory. recall is called when a call for a volume fails for the first
// time; it may be nil.
func NewMemory(recall Recall) *Memory {
	return &Memory{recall: recall, recalled: map[[2]string]bool{}}
}

// WithMemory makes Drivers share the secrets they know: several drivers, or one driver that
// registers repeatedly.
func WithMemory(m *Memory) Option { return func(o *options) { o.memory = m } }

// hideSecrets removes secrets from what the driver says: from errors, and from the messages in
// answers.
func hideSecrets(m *Memory, d *Driver) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			m.secrets.Add(secretsOf(req)...)
			err := next(ctx, method, req, reply, opts...)
			id, quotes := mayQuote(req)
			hide := func(text string) string {
				if !quotes {
					return m.secrets.Hide(text)
				}
				return m.hide(ctx, d.Name, id, text)
			}
			hideInAnswer(reply, hide)
			return hideInError(err, hide)
		}
	}
}

// hideInError returns an error without secrets. An error that is not a gRPC status was made in this
// process and quotes nothing of the driver.
func hideInError(err error, hide func(string) string) error {
	if ours, ok := err.(*refusal); ok { //nolint:errorlint // nothing wraps it here, and what wraps it must be looked at
		return refuse(ours.code, ours.reason, hide(ours.text))
	}
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	// The details of a status may quote secrets, too; CSI requires them to be empty.
	return status.Error(s.Code(), hide(s.Message()))
}

// hide returns the driver's text without secrets or, if the secrets are unknown, why it is not shown.
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

// remember adds the secrets that the driver received from earlier processes.
func (m *Memory) remember(ctx context.Context, driver, volumeID string) error {
	key := [2]string{driver, volumeID}
	m.mu.Lock()
	done := m.recall == nil || m.recalled[key]
	m.mu.Unlock()
	if done {
		return nil
	}
	// The call's context may have ended already.
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

// mayQuote returns the volume whose secrets an answer may quote, and whether there is one. An empty id means all of the
// driver's volumes: a problem of its storage may be described in terms of any of them.
func mayQuote(req any) (id string, ok bool) {
	_, all := req.(*csipb.NodeGetStorageHealthRequest)
	id = idOf(req)
	return id, all || id != ""
}

// hideInAnswer removes secrets from the human-readable texts in an answer. All other fields are sent back to the driver
// later and must not change.
func hideInAnswer(reply any, hide func(string) string) {
	m, ok := reply.(proto.Message)
	if !ok {
		return
	}
	hideInCondition(reply, hide)
	eachText(m.ProtoReflect(), func(f protoreflect.FieldDescriptor, _, text string) string {
		if slices.Contains([]protoreflect.Name{"message", "reason"}, f.Name()) {
			return hide(text)
		}
		return text
	})
}
