package external

import (
	"cmp"
	"context"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// keys is an etcd of one process, whose answers can be lost.
type keys struct {
	revision int64
	all      map[string]*mvccpb.KeyValue
	// faults are those of the next requests: what becomes of each.
	faults []fault
	// late are requests that the etcd carries out when the test says so.
	late []*pb.TxnRequest
	// between is carried out after the first request without an answer.
	between *pb.TxnRequest
}

type fault int

const (
	none fault = iota
	// lost requests are not carried out, and those without an answer are.
	lost
	unanswered
	// delayed requests are carried out later.
	delayed
)

func (k *keys) invoke(ctx context.Context, _ string, in, out any) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	txn, what := in.(*pb.TxnRequest), none
	if len(k.faults) > 0 {
		what, k.faults = k.faults[0], k.faults[1:]
	}
	reply := &pb.TxnResponse{}
	switch what {
	case lost:
	case delayed:
		k.late = append(k.late, txn)
	default:
		reply = k.carryOut(txn)
	}
	if what == unanswered && k.between != nil {
		k.carryOut(k.between)
	}
	if what != none {
		return status.Error(codes.Unavailable, "etcdserver: request timed out, possibly due to previous leader failure")
	}
	proto.Reset(out.(*pb.TxnResponse))
	proto.Merge(out.(*pb.TxnResponse), reply)
	return nil
}

func (k *keys) carryOut(txn *pb.TxnRequest) *pb.TxnResponse {
	reply, next := &pb.TxnResponse{Succeeded: true}, k.revision+1
	for _, c := range txn.GetCompare() {
		reply.Succeeded = reply.Succeeded && k.all[string(c.GetKey())].GetModRevision() == c.GetModRevision()
	}
	ops := txn.GetFailure()
	if reply.GetSucceeded() {
		ops = txn.GetSuccess()
	}
	for _, op := range ops {
		found := &pb.RangeResponse{}
		switch r := op.GetRequest().(type) {
		case *pb.RequestOp_RequestPut:
			k.revision = next
			created := k.all[string(r.RequestPut.GetKey())].GetCreateRevision()
			k.all[string(r.RequestPut.GetKey())] = &mvccpb.KeyValue{
				Key: r.RequestPut.GetKey(), Value: r.RequestPut.GetValue(), ModRevision: next,
				CreateRevision: cmp.Or(created, next),
			}
		case *pb.RequestOp_RequestDeleteRange:
			k.revision = next
			delete(k.all, string(r.RequestDeleteRange.GetKey()))
		case *pb.RequestOp_RequestRange:
			if kv := k.all[string(r.RequestRange.GetKey())]; kv != nil {
				found.Kvs = append(found.Kvs, proto.CloneOf(kv))
			}
		}
		reply.Responses = append(reply.Responses, &pb.ResponseOp{
			Response: &pb.ResponseOp_ResponseRange{ResponseRange: found},
		})
	}
	reply.Header = &pb.ResponseHeader{Revision: k.revision}
	return reply
}

const key, fenceAt = "/volplane/here/pods/x", "/volplane/here/fence"

// when returns a write of the key on the condition that it was written last at a revision.
func when(revision int64, op *pb.RequestOp) *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Key: []byte(key), Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: revision},
		}},
		Success: []*pb.RequestOp{op}, Failure: []*pb.RequestOp{reading([]byte(key))},
	}
}

func put(value string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value)},
	}}
}

func remove() *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
	}}
}

// begin returns keys, of which the fence is at revision 1 and the key, with the value "old", at 2.
func begin() (*keys, *fence) {
	k, f := &keys{all: map[string]*mvccpb.KeyValue{}}, &fence{key: []byte(fenceAt)}
	f.lead()
	k.carryOut(&pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: f.key}}},
	}})
	f.know(k.revision)
	k.carryOut(&pb.TxnRequest{Success: []*pb.RequestOp{put("old")}})
	return k, f
}

// TestFence: each write is carried out once, whether requests or their answers are lost, and not at all if its
// condition fails.
func TestFence(t *testing.T) {
	t.Parallel()
	update, deletion, creation := when(2, put("new")), when(2, remove()), when(0, put("new"))
	for name, c := range map[string]struct {
		write *pb.TxnRequest
		// others is what another process does before.
		others *pb.TxnRequest
		faults []fault
		done   bool
		// value is that of the key afterwards, "" if it does not exist, and at the revision of the answer.
		value string
		at    int64
	}{
		"an update":                     {update, nil, nil, true, "new", 3},
		"whose condition fails":         {when(1, put("new")), nil, nil, false, "old", 2},
		"that is lost":                  {update, nil, []fault{lost}, true, "new", 4},
		"without an answer":             {update, nil, []fault{unanswered}, true, "new", 3},
		"and the fence is lost":         {update, nil, []fault{unanswered, lost}, true, "new", 3},
		"nor has the fence an answer":   {update, nil, []fault{lost, unanswered}, true, "new", 5},
		"that is lost twice":            {update, nil, []fault{lost, none, lost}, true, "new", 5},
		"that is carried out later":     {update, nil, []fault{delayed}, true, "new", 4},
		"a deletion without an answer":  {deletion, nil, []fault{unanswered}, true, "", 4},
		"a deletion that is lost":       {deletion, nil, []fault{lost}, true, "", 4},
		"another one moved the fence":   {update, moveOf(fenceAt), nil, true, "new", 4},
		"another one changed the key":   {update, when(2, put("its")), nil, false, "its", 3},
		"and an answer was lost":        {update, when(2, put("its")), []fault{lost}, false, "its", 4},
		"a creation of an existing key": {creation, nil, []fault{lost}, false, "old", 3},
		"a creation that is late":       {creation, deletion, []fault{delayed}, true, "new", 5},
		"a creation without an answer":  {creation, deletion, []fault{unanswered}, true, "new", 4},
		"a user deletes the fence":      {update, deletionOf(fenceAt), nil, false, "old", 3},
	} {
		k, f := begin()
		if c.others != nil {
			k.carryOut(c.others)
		}
		k.faults = c.faults
		reply := &pb.TxnResponse{}
		if err := f.write(t.Context(), c.write, reply, k.invoke); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if reply.GetSucceeded() != c.done || string(k.all[key].GetValue()) != c.value ||
			reply.GetHeader().GetRevision() != c.at {
			t.Errorf("%s: %v, and the key is %v; want %+v", name, reply, k.all[key], c)
		}
		if shown := reply.GetResponses(); !reply.GetSucceeded() && (len(shown) != 1 || revisionOf(shown[0]) == 0) {
			t.Errorf("%s: the answer has %v instead of the key", name, shown)
		}
		// What arrives late has no effect any more, also if the key was deleted.
		delete(k.all, key)
		for _, late := range k.late {
			if k.carryOut(late); k.all[key] != nil {
				t.Errorf("%s: it is carried out late", name)
			}
		}
	}
}

// TestFenceSparesWhatIsNew: a deletion without an answer was carried out if the key was created again since, and
// what is there now stays.
func TestFenceSparesWhatIsNew(t *testing.T) {
	t.Parallel()
	k, f := begin()
	k.faults, k.between = []fault{unanswered}, when(0, put("again"))
	reply := &pb.TxnResponse{}
	err := f.write(t.Context(), when(2, remove()), reply, k.invoke)
	if err != nil || !reply.GetSucceeded() || string(k.all[key].GetValue()) != "again" {
		t.Errorf("%v, %v, and the key is %v", reply, err, k.all[key])
	}
}

func moveOf(key string) *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}},
	}}
}

func deletionOf(key string) *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
	}}}}
}

// TestFenceOfNewLeader: a write that hangs is settled when another member leads, and ends with its caller.
func TestFenceOfNewLeader(t *testing.T) {
	t.Parallel()
	k, f := begin()
	hangs := true
	hang := func(ctx context.Context, method string, in, out any) error {
		if !hangs {
			return k.invoke(ctx, method, in, out)
		}
		hangs = false
		go f.lead()
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	reply := &pb.TxnResponse{}
	if err := f.write(t.Context(), when(2, put("new")), reply, hang); err != nil || !reply.GetSucceeded() {
		t.Errorf("%v, %v", reply, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.write(ctx, when(4, put("newer")), reply, k.invoke); status.Code(err) != codes.Canceled {
		t.Error("a caller that has gone:", err)
	}
	refused := status.Error(codes.PermissionDenied, "it may not")
	refuse := func(context.Context, string, any, any) error { return refused }
	err := f.write(t.Context(), when(4, put("newer")), reply, refuse)
	if status.Code(err) != codes.PermissionDenied {
		t.Error("a refusal:", err)
	}
}
