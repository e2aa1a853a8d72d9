package cli

import (
	"context"
	"fmt"
	"io"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/internal/gather"
)

func printRoom(ctx context.Context, out io.Writer, client kubernetes.Interface) {
	r, ok := gather.Room(ctx, client)
	if !ok {
		return
	}
	used := room.Text(r.Used)
	if r.Limit > 0 { // an older etcd of others does not say
		used += " of " + room.Text(r.Limit)
	}
	fmt.Fprintf(out, "database     %s used, file of %s\n", used, room.Text(r.Size))
	if m := r.Members; m != nil {
		fmt.Fprintf(out, "store        an etcd that others run, keys below %s; %s\n", m.Prefix,
			room.Members{All: m.All, Answer: m.Answer}.Answers())
	} else {
		fmt.Fprintf(out, "disk         %s of %s free, %s in reserve\n", room.Text(r.Free), room.Text(r.Total),
			room.Text(r.Reserve))
	}
	if r.Refuses {
		fmt.Fprintf(out, "\n%s: %s\n", r.Reason, r.Message)
	}
}
