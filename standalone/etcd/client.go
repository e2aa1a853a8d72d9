package etcd

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// Client returns a way to the member without a connection.
func (s *Server) Client() *clientv3.Client { return v3client.New(s.etcd.Server) }

// Defragment writes the data base anew, without what has been deleted in it.
func (s *Server) Defragment() error { return s.etcd.Server.Backend().Defrag() }
