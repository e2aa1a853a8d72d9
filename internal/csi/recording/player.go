package recording

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/socket"
)

// Player answers as the recorded driver has answered. It is safe for concurrent use.
type Player struct {
	// Speed is how many times faster than the driver it answers; 0 answers immediately.
	Speed float64
	// Report is called with each call; it may be nil.
	Report func(csi.Call)

	// memory finds the secrets in a request that are hidden in the recording.
	memory *csi.Memory
	mu     sync.Mutex
	// answers has the recorded answers to each request, and methods the requests of each method.
	answers map[string]*answers
	methods map[string][]json.RawMessage
}

// answers are the calls with the same request, and which of them is next.
type answers struct {
	calls []csi.Call
	next  int
}

// NewPlayer returns a Player of a recording, and how many of its calls it cannot play, because they were too large to
// be recorded.
func NewPlayer(r Recording) (p *Player, unplayable int) {
	p = &Player{memory: csi.NewMemory(nil), answers: map[string]*answers{}, methods: map[string][]json.RawMessage{}}
	for _, c := range r.Calls {
		if !isObject(c.Request) || c.Code == codes.OK.String() && !isObject(c.Answer) {
			unplayable++
			continue
		}
		key := keyOf(c.Method, c.Request)
		if p.answers[key] == nil {
			p.answers[key] = &answers{}
			p.methods[c.Method] = append(p.methods[c.Method], c.Request)
		}
		p.answers[key].calls = append(p.answers[key].calls, c)
	}
	return p, unplayable
}

// keyOf returns a key that is the same for all calls of a method with the same request, however their JSON was written.
func keyOf(method string, request json.RawMessage) string {
	var value any
	if json.Unmarshal(request, &value) == nil {
		request, _ = json.Marshal(value) // it was read as JSON
	}
	return method + string(request)
}

func isObject(text json.RawMessage) bool { return len(text) > 0 && text[0] == '{' }

// Serve answers at a socket, which it creates, until ctx ends.
func (p *Player) Serve(ctx context.Context, path string) error {
	at, err := socket.Listen(ctx, path)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(p.handle))
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(at)
}

// handle answers a call of any method.
func (p *Player) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	request, answer := csi.NewMessages(method)
	if request == nil {
		return status.Errorf(codes.Unimplemented, "CSI does not have the method %.100s", method)
	}
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	recorded, err := p.find(method, p.memory.Shown(request))
	if err != nil {
		p.tell(csi.Call{Time: time.Now(), Method: method, Code: csi.Code(err).String(), Error: err.Error()})
		return err
	}
	if err := p.pause(stream.Context(), recorded); err != nil {
		return err
	}
	p.tell(recorded)
	if code := codeOf(recorded.Code); code != codes.OK {
		return status.Error(code, recorded.Error)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(recorded.Answer, answer); err != nil {
		return status.Errorf(codes.Internal, "the recorded answer to %s cannot be read: %v", path.Base(method), err)
	}
	return stream.SendMsg(answer)
}

func (p *Player) tell(c csi.Call) {
	if p.Report != nil {
		p.Report(c)
	}
}

// find returns what was answered to a request.
func (p *Player) find(method string, request json.RawMessage) (csi.Call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.answers[keyOf(method, request)]
	if a == nil {
		return csi.Call{}, p.unknown(method, request)
	}
	c := a.calls[a.next]
	a.next = min(a.next+1, len(a.calls)-1)
	return c, nil
}

// unknown is the answer to a request that was not recorded.
func (p *Player) unknown(method string, request json.RawMessage) error {
	if len(p.methods[method]) == 0 {
		return status.Errorf(codes.Unimplemented, "the recording has no call of %s", path.Base(method))
	}
	return status.Errorf(codes.InvalidArgument, "the recording has no %s with this request; the nearest one differs: %s",
		path.Base(method), nearest(request, p.methods[method]))
}

// pause waits as long as the driver took.
func (p *Player) pause(ctx context.Context, c csi.Call) error {
	if p.Speed <= 0 {
		return nil
	}
	timer := time.NewTimer(time.Duration(c.Seconds / p.Speed * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// codeOf returns the gRPC code of a name; Unknown for a name that there is not.
func codeOf(name string) codes.Code {
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if c.String() == name {
			return c
		}
	}
	return codes.Unknown
}

// Name describes the recording, for users.
func (h Header) Name() string {
	out := "driver " + h.Driver
	if h.DriverVersion != "" {
		out += " " + h.DriverVersion
	}
	return fmt.Sprintf("%s, recorded at %s", out, h.RecordedAt.Format(time.RFC3339))
}
